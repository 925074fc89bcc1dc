//go:build vm

package flanneltest

import "time"

// patience bounds every wait, on an emulated processor.
const patience = 5 * time.Minute
