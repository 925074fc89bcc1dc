//go:build vm

package flanneltest

import "time"

// patience limits every wait, on an emulated processor.
const patience = 5 * time.Minute
