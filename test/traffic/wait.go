//go:build !vm

package traffic

import "time"

// askWait is how long a connection or an answer is waited for: longer than TCP takes to repeat a lost SYN, and than a busy machine stands
// still. Tests of what must not arrive and have no time limit of their own wait for it each time.
const askWait = 3 * time.Second
