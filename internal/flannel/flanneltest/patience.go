//go:build !vm

package flanneltest

import "time"

// patience limits every wait.
const patience = 60 * time.Second
