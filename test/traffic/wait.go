//go:build !vm

package traffic

import "time"

// askWait is how long a connection or an answer is waited for: longer than TCP takes to repeat a lost SYN. Tests of what must not arrive wait
// for it each time.
const askWait = 1500 * time.Millisecond
