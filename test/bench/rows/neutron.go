package rows

import (
	"context"
	"errors"

	"weft.dev/weft/test/bench/measure"
	"weft.dev/weft/test/bench/neutron"
)

// onNeutron returns the groups of pods on OpenStack's networks, each in a lab with an OpenStack, which exists only for the group.
func onNeutron() []Group {
	var all []Group
	for _, g := range neutron.Groups() {
		all = append(all, Group{Title: g.Title, Rows: g.Rows, run: func(ctx context.Context, b Bench, rows []measure.Row) (results []measure.Result, err error) {
			s, err := neutron.Open(ctx, b.Stage, func(ctx context.Context, s *neutron.Scene) error {
				if g.Before == nil {
					return nil
				}
				return g.Before(ctx, s, rows)
			})
			defer func() { err = errors.Join(err, s.Close(context.WithoutCancel(ctx))) }()
			if err != nil {
				return nil, err
			}
			return g.Run(ctx, s, rows, b.compare)
		}})
	}
	return all
}
