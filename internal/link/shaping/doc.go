// Package shaping shapes the traffic of pods on pre-plugged ports, by token buckets (tbf) at their veth peers.
package shaping
