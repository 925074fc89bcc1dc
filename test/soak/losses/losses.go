// Package losses has what the parts of the soak share: a lab of their own, packets that are counted while something happens, which of their
// losses are failures, and crowds of pods of which nothing may remain.
package losses

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"weft.dev/weft/lab"
	"weft.dev/weft/test/probe"
	"weft.dev/weft/test/traffic"
)

// downTime is how long a lab may take to go down.
const downTime = 2 * time.Minute

// InLab runs a part in a lab of its own, and takes it down. It returns an error if the lab has left something on the machine.
func InLab(ctx context.Context, config lab.Config, part func(c *lab.Cluster, took time.Duration) error) (err error) {
	if err := lab.Down(ctx, config.Name, nil); err != nil { // of a killed run
		return err
	}
	before, err := probe.TakeInventory(config.Name)
	if err != nil {
		return err
	}
	defer func() {
		down, cancel := context.WithTimeout(context.WithoutCancel(ctx), downTime)
		defer cancel()
		err = errors.Join(err, lab.Down(down, config.Name, nil))
		if err == nil {
			err = before.Left()
		}
	}()
	began := time.Now()
	cluster, err := lab.Up(ctx, config, nil)
	if err != nil {
		return err
	}
	return part(cluster, time.Since(began))
}

// Tallies are the counts of packets of each pair.
type Tallies = map[string]traffic.Tally

// Count sends on all pairs while act runs, and for a time after it. Which losses are failures is for Judge. lost describes all losses; err
// is that of act, or of the traffic.
func Count(ctx context.Context, pairs []traffic.Pair, rate int, calm time.Duration, act func() error) (tallies Tallies, lost, err error) {
	running, err := traffic.NewLoad(pairs, rate)
	if err != nil {
		return nil, nil, err
	}
	err = act()
	if calm > 0 {
		select {
		case <-ctx.Done():
		case <-time.After(calm):
		}
	}
	tallies, lost = running.Stop()
	return tallies, lost, err
}

// Rule says which losses are failures.
type Rule struct {
	// Spares reports whether a pair must lose nothing. Nil: each pair must lose nothing.
	Spares func(pair string) bool
	// Calm are the counts of the same traffic without a fault, which may lose packets as well.
	Calm Tallies
	// May is how many packets a pair may lose in addition.
	May uint64
}

// Loss is the result of Judge.
type Loss struct {
	// Sent and Lost count the packets of the spared pairs, Others the losses of the others.
	Sent, Lost, Others uint64
	// Err names the spared pairs that lost more than they may.
	Err error
}

// Judge judges the losses of all pairs.
func (r *Rule) Judge(tallies Tallies) Loss {
	var loss Loss
	var errs []error
	for _, pair := range slices.Sorted(maps.Keys(tallies)) {
		tally := tallies[pair]
		if r.Spares != nil && !r.Spares(pair) {
			loss.Others += tally.Lost
			continue
		}
		loss.Sent, loss.Lost = loss.Sent+tally.Sent, loss.Lost+tally.Lost
		switch calm := r.Calm[pair]; {
		case tally.Lost <= calm.Lost+r.May:
		case r.Calm == nil && r.May == 0:
			errs = append(errs, fmt.Errorf("%s: %s", pair, tally))
		default:
			errs = append(errs, fmt.Errorf("%s: %s; %s without a fault, and %d more may be lost", pair, tally, calm, r.May))
		}
	}
	loss.Err = errors.Join(errs...)
	return loss
}

// Census counts on each node what could leak.
type Census func(ctx context.Context) (map[string]probe.Counts, error)

// NothingLeft waits until no node has more than before, and also returns nil.
func (c Census) NothingLeft(ctx context.Context, before map[string]probe.Counts, also func(ctx context.Context) error) error {
	_, err := probe.Await(ctx, probe.Patience, "nothing left over", func(ctx context.Context) error {
		after, err := c(ctx)
		if err != nil {
			return err
		}
		var errs []error
		if also != nil {
			errs = append(errs, also(ctx))
		}
		for _, node := range slices.Sorted(maps.Keys(after)) {
			if err := after[node].More(before[node]); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", node, err))
			}
		}
		return errors.Join(errs...)
	})
	return err
}

// AtATime is the number of concurrent requests of a crowd.
const AtATime = 32

// Crowd is a number of pods that are added and deleted, several at the same time.
type Crowd struct {
	Pods, Together int
	// Add adds the pod of a number, from 0; Delete deletes it.
	Add    func(ctx context.Context, i int) (*lab.Pod, error)
	Delete func(ctx context.Context, p *lab.Pod) error
	// Network is the name of the network of a pod, within which addresses are unique.
	Network func(p *lab.Pod) string
}

// Run adds the pods and deletes them. It returns how many there were, and an error if two of them had one address.
func (c *Crowd) Run(ctx context.Context) (count int, err error) {
	pods := make([]*lab.Pod, c.Pods)
	var adding, deleting errgroup.Group
	adding.SetLimit(c.Together)
	for i := range pods {
		adding.Go(func() (err error) {
			pods[i], err = c.Add(ctx, i)
			return err
		})
	}
	err = adding.Wait()
	addresses := map[string]bool{}
	deleting.SetLimit(c.Together)
	for _, p := range pods {
		if p == nil {
			continue
		}
		count++
		for _, ip := range p.IPs {
			key := c.Network(p) + " " + ip.String()
			if addresses[key] {
				err = errors.Join(err, fmt.Errorf("two pods of network %q have %s", c.Network(p), ip))
			}
			addresses[key] = true
		}
		deleting.Go(func() error { return c.Delete(ctx, p) })
	}
	return count, errors.Join(err, deleting.Wait())
}
