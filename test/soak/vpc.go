package main

import (
	"context"

	"weft.dev/weft/test/soak/losses"
	"weft.dev/weft/test/soak/report"
	"weft.dev/weft/test/soak/vpc"
)

// onVPCs runs the part of VPCs.
func onVPCs(ctx context.Context, s *soak) error {
	return vpc.Run(ctx, vpc.Options{Lab: s.opts.lab + "v", Bin: s.opts.bin, Faults: s.opts.faults, Say: s.report.Say}, func(of vpc.Row) {
		r := report.Row{Part: "vpc", Name: of.Name, Count: 1, Spared: string(losses.All), Sent: of.Sent, Lost: of.Lost, Back: of.Back, Took: of.Took}
		if s.opts.loss {
			r.Fail(of.Lossy)
		} else {
			r.Verdict = report.Unjudged
		}
		for _, err := range of.Wrong {
			r.Fail(err)
		}
		s.report.Add(r)
	})
}
