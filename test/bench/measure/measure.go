// Package measure compares two sides that do the same work. It interleaves their rounds, so that other load on the machine affects both.
// It uses the median of the rounds' ratios, so that a bad round has no effect.
package measure

import (
	"context"
	"fmt"
)

// MinRounds is the minimum number of rounds of a comparison.
const MinRounds = 7

// Figures are the values of one side in one round, by metric.
type Figures map[string]float64

// Side does one round of work.
type Side func(ctx context.Context) (Figures, error)

// Round is the figures of both sides, measured one after the other.
type Round struct{ Ours, Peer Figures }

// Plan describes a comparison.
type Plan struct {
	// Rounds is the number of rounds, at least MinRounds.
	Rounds int
	// Ours and Peer are the sides. A nil Peer measures ours alone.
	Ours, Peer Side
	// Progress is called after every round; it may be nil.
	Progress func(done, all int)
}

// Run does one round that does not count, which fills caches and makes files, and then the rounds. The sides alternate in going first.
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

// Row is a metric of the rounds, and its target.
type Row struct {
	// Name is the row's, such as "cni/10/add".
	Name string
	// Metric is the key in Figures.
	Metric string
	// Unit is the unit of the figures.
	Unit string
	// Target may be zero: then the row is printed without a target.
	Target Target
	// Alone says that the row has no peer, even if the rounds have one.
	Alone bool
}

// Result is a row of the report. Programs read its JSON, so the keys are stable.
type Result struct {
	Row  string `json:"row"`
	Unit string `json:"unit"`
	// Ours and Peer are the medians over the rounds.
	Ours float64 `json:"ours"`
	// Peer is 0 if there is none.
	Peer float64 `json:"peer"`
	// Ratio is the median of the rounds' ratios of ours to the peer's; 0 without a peer.
	Ratio float64 `json:"ratio"`
	// Spread is the interquartile range of the rounds' ratios; without a peer, of our figures.
	Spread float64 `json:"spread"`
	Target string  `json:"target"`
	Met    bool    `json:"met"`
	// Invalid is the reason why the figures must not be quoted; empty if they are valid.
	Invalid string `json:"invalid,omitempty"`
}

// Judge computes the row's result from the rounds. A round without the figure for a side is an error.
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

// Judge computes the results of several rows from the same rounds.
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
