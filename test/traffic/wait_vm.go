//go:build vm

package traffic

import "time"

// askWait is how long a connection or an answer is waited for: an emulated processor is ten times slower.
const askWait = 10 * time.Second
