// Package quiet measures the machine's load, and waits until it is low enough to count packets.
package quiet

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// MaxLoad is the load per processor above which packets are lost for lack of processor time, not by the network. within is how long Await
// waits for it: the load average of a minute is still high after the builds that come before a soak.
const (
	MaxLoad = 0.75
	within  = 5 * time.Minute
)

// Load returns the machine's load average of the last minute, per processor.
func Load() (float64, error) {
	raw, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0, fmt.Errorf("the load of this machine: %w", err)
	}
	first, _, _ := strings.Cut(string(raw), " ")
	load, err := strconv.ParseFloat(first, 64)
	if err != nil {
		return 0, fmt.Errorf("the load of this machine: %w", err)
	}
	return load / float64(runtime.NumCPU()), nil
}

// Await waits until the load is at most MaxLoad, for 5 minutes at most, and returns the load.
func Await(ctx context.Context, say func(string, ...any)) (float64, error) {
	load, err := Load()
	if err != nil || load <= MaxLoad {
		return load, err
	}
	say("the load is %.2f on each processor: waiting up to %s for %.2f", load, within, MaxLoad)
	deadline := time.After(within)
	each := time.NewTicker(5 * time.Second) // the period in which the kernel computes it
	defer each.Stop()
	for {
		select {
		case <-ctx.Done():
			return load, ctx.Err()
		case <-deadline:
			return load, nil
		case <-each.C:
			if load, err = Load(); err != nil || load <= MaxLoad {
				return load, err
			}
		}
	}
}
