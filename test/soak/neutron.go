package main

import (
	"context"
	"path/filepath"

	"weft.dev/weft/test/soak/neutron"
)

// onNeutron runs the part of Neutron's networks.
func onNeutron(s *soak, ctx context.Context) error {
	bin, err := filepath.Abs(s.opts.bin)
	if err != nil {
		return err
	}
	opts := neutron.Options{
		Lab: s.opts.lab + "n", Bin: bin, Faults: s.opts.faults, Rounds: s.opts.rounds, Crowd: s.opts.crowd, Loss: s.opts.loss, Say: s.report.Say,
	}
	return neutron.Run(ctx, opts, s.report.Add)
}
