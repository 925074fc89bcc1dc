//go:build !vm

package flanneltest

import "time"

// patience bounds every wait.
const patience = 60 * time.Second
