//go:build vm

package ovstest

// Datapath and Slowness: see datapath.go.
const (
	Datapath = "system"
	Slowness = 10
)
