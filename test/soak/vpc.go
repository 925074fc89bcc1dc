package main

import (
	"context"
	"path/filepath"

	"weft.dev/weft/test/soak/vpc"
)

// onVPCs runs the part of VPCs.
func onVPCs(s *soak, ctx context.Context) error { //nolint:revive // the signature of a part's method
	bin, err := filepath.Abs(s.opts.bin)
	if err != nil {
		return err
	}
	return vpc.Run(ctx, vpc.Options{Lab: s.opts.lab + "v", Bin: bin, Faults: s.opts.faults, Say: s.say}, func(of vpc.Row) {
		r := row{Part: "vpc", Name: of.Name, Count: 1, Spared: string(all), Sent: of.Sent, Lost: of.Lost, Back: of.Back, Took: of.Took}
		if s.opts.loss {
			r.wrong(of.Lossy)
		} else {
			r.Verdict = unjudged
		}
		for _, err := range of.Wrong {
			r.wrong(err)
		}
		s.add(r)
	})
}
