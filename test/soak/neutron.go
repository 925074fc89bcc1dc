package main

import (
	"context"

	"weft.dev/weft/test/soak/neutron"
)

// onNeutron runs the part of Neutron's networks.
func onNeutron(ctx context.Context, s *soak) error {
	opts := neutron.Options{
		Lab: s.opts.lab + "n", Bin: s.opts.bin, Faults: s.opts.faults, Rounds: s.opts.rounds, Crowd: s.opts.crowd, Loss: s.opts.loss, Say: s.report.Say,
	}
	return neutron.Run(ctx, opts, s.report.Add)
}
