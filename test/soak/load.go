package main

import (
	"context"
	"slices"
	"time"
)

// maxLoad is the load per processor above which packets are lost for lack of processor time, not by the network. calmWithin is how long
// parts that count packets wait for it: the load average of a minute is still high after the builds that come before a soak.
const (
	maxLoad    = 0.75
	calmWithin = 5 * time.Minute
)

// calm returns the machine's load. If a part counts packets, it waits until the load is low enough for that, or for calmWithin.
func calm(ctx context.Context, chosen []part, loss bool, say func(string, ...any)) (float64, error) {
	load, err := loadOf()
	if err != nil || load <= maxLoad || !loss || !slices.ContainsFunc(chosen, func(p part) bool { return p.loss }) {
		return load, err
	}
	say("the load is %.2f on each processor: waiting up to %s for %.2f", load, calmWithin, maxLoad)
	deadline := time.After(calmWithin)
	each := time.NewTicker(5 * time.Second) // the period in which the kernel computes it
	defer each.Stop()
	for {
		select {
		case <-ctx.Done():
			return load, ctx.Err()
		case <-deadline:
			return load, nil
		case <-each.C:
			if load, err = loadOf(); err != nil || load <= maxLoad {
				return load, err
			}
		}
	}
}
