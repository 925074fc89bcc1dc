// Package measure compares two sides that do the same work: in interleaved rounds, so that whatever else the machine does
// meets both, and by the median of the rounds' ratios, so that a bad round decides nothing.
package measure

import (
	"context"
	"fmt"
)

// MinRounds is the fewest rounds that a comparison has.
const MinRounds = 7

// Figures are what one side measured in one round: metric to value.
type Figures map[string]float64

// Side does one round of work.
type Side func(ctx context.Context) (Figures, error)

// Round is what both sides measured next to each other.
type Round struct{ Ours, Peer Figures }

// Plan says how a comparison goes.
type Plan struct {
	// Rounds counts; fewer than MinRounds are MinRounds.
	Rounds int
	// Ours and Peer are the sides. A nil Peer measures ours alone.
	Ours, Peer Side
	// Progress is told of every round that is done; it may be nil.
	Progress func(done, all int)
}

// Run does one round that does not count, in which caches fill and files are made, and then the rounds. Who goes first
// alternates.
func (p Plan) Run(ctx context.Context) ([]Round, error) {
	all := max(p.Rounds, MinRounds)
	var rounds []Round
	for i := range all + 1 {
		var round Round
		measureOurs := func() (err error) {
			round.Ours, err = p.Ours(ctx)
			return wrap(err, "ours", i)
		}
		measurePeer := func() (err error) {
			if p.Peer == nil {
				return nil
			}
			round.Peer, err = p.Peer(ctx)
			return wrap(err, "the peer's", i)
		}
		order := []func() error{measureOurs, measurePeer}
		if i%2 == 1 {
			order[0], order[1] = order[1], order[0]
		}
		for _, measure := range order {
			if err := measure(); err != nil {
				return nil, err
			}
		}
		if i > 0 {
			rounds = append(rounds, round)
		}
		if p.Progress != nil {
			p.Progress(i, all)
		}
	}
	return rounds, nil
}

func wrap(err error, side string, round int) error {
	if err != nil {
		return fmt.Errorf("round %d, %s: %w", round, side, err)
	}
	return nil
}

// Row is what is measured of the rounds, and what it must reach.
type Row struct {
	// Name is the row's, such as "cni/10/add".
	Name string
	// Metric is the figure's name in Figures.
	Metric string
	// Unit is the figures'.
	Unit string
	// Target may be zero: the row is printed, and nothing is demanded of it.
	Target Target
	// Alone is a row that has no peer, also where the rounds have one.
	Alone bool
}

// Result is a row of the report; the names of its keys are for programs that read it.
type Result struct {
	Row  string `json:"row"`
	Unit string `json:"unit"`
	// Ours and Peer are the medians over the rounds.
	Ours float64 `json:"ours"`
	// Peer is 0 where there is none.
	Peer float64 `json:"peer"`
	// Ratio is the median of the rounds' ratios, ours by the peer's; 0 without a peer.
	Ratio float64 `json:"ratio"`
	// Spread is the distance between the quartiles of the rounds' ratios; without a peer, of our figures.
	Spread float64 `json:"spread"`
	Target string  `json:"target"`
	Met    bool    `json:"met"`
	// Invalid says why the figures must not be quoted; it is there only then.
	Invalid string `json:"invalid,omitempty"`
}

// Judge makes the row's result of the rounds. A round in which a side has no such figure is an error.
func (r Row) Judge(rounds []Round) (Result, error) {
	result := Result{Row: r.Name, Unit: r.Unit, Target: r.Target.String()}
	var ours, peer, ratios []float64
	for i, round := range rounds {
		o, ok := round.Ours[r.Metric]
		if !ok {
			return result, fmt.Errorf("row %s: round %d has no %s of ours", r.Name, i+1, r.Metric)
		}
		ours = append(ours, o)
		if r.Alone || round.Peer == nil {
			continue
		}
		p, ok := round.Peer[r.Metric]
		if !ok || p <= 0 {
			return result, fmt.Errorf("row %s: round %d: %s of the peer is %v, which nothing can be compared with", r.Name, i+1, r.Metric, p)
		}
		peer, ratios = append(peer, p), append(ratios, o/p)
	}
	result.Ours, result.Spread = Median(ours), Spread(ours)
	if len(ratios) > 0 {
		result.Peer, result.Ratio, result.Spread = Median(peer), Median(ratios), Spread(ratios)
	}
	result.Met = r.Target.met(result)
	return result, nil
}

// Judge makes the results of rows of the same rounds.
func Judge(rows []Row, rounds []Round) ([]Result, error) {
	results := make([]Result, 0, len(rows))
	for _, r := range rows {
		result, err := r.Judge(rounds)
		if err != nil {
			return nil, err
		}
		results = append(results, result)
	}
	return results, nil
}
