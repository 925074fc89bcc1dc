package main

import (
	"context"

	"weft.dev/weft/test/soak/flannel"
	"weft.dev/weft/test/soak/report"
)

// flannelCrowd is the number of pods that a round adds and deletes on a flannel network: a node's podCIDR has 254 addresses.
const flannelCrowd = 200

// onFlannel runs the part of flannel networks.
func onFlannel(ctx context.Context, s *soak) error {
	opts := flannel.Options{
		Lab: s.opts.lab + "f", Bin: s.opts.bin, Faults: s.opts.faults, Rounds: s.opts.rounds, Crowd: min(flannelCrowd, s.opts.crowd), Say: s.report.Say,
	}
	return flannel.Run(ctx, opts, func(of flannel.Row) {
		r := report.Row{
			Part: "flannel", Name: of.Name, Count: of.Count, Spared: of.Spared, Sent: of.Sent, Lost: of.Lost, Others: of.Others,
			Leaks: of.Leaks, Back: of.Back, Took: of.Took,
		}
		if s.opts.loss {
			r.Fail(of.Lossy)
			r.Fail(of.Late)
		} else if of.Spared != "" {
			r.Verdict = report.Unjudged
		}
		for _, err := range of.Wrong {
			r.Fail(err)
		}
		s.report.Add(r)
	})
}
