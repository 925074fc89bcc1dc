package overlay

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"weft.dev/weft/lab"
	"weft.dev/weft/lab/process"
	"weft.dev/weft/test/probe"
	"weft.dev/weft/test/soak/losses"
	"weft.dev/weft/test/soak/overlay/program"
	"weft.dev/weft/test/soak/report"
)

// ledger counts what the nodes of a lab hold, and what of it remains after something happened.
type ledger struct{ cluster *lab.Cluster }

// census counts everything on each node that could leak, except what a restarted program has newly made.
func (l ledger) census(ctx context.Context, programs bool) (map[string]probe.Counts, error) {
	census := map[string]probe.Counts{}
	for _, n := range l.cluster.Nodes() {
		have, err := probe.Count(ctx, l.cluster, n)
		if err != nil {
			return nil, err
		}
		for name := range have {
			if !programs && (strings.HasPrefix(name, "restarts of") || strings.HasPrefix(name, "descriptors of") || name == "goroutines") {
				delete(have, name)
			}
		}
		census[n.Name] = have
	}
	return census, nil
}

// rest is census, once nothing is being made or removed any more.
func (l ledger) rest(ctx context.Context, programs bool) (map[string]probe.Counts, error) {
	for _, n := range l.cluster.Nodes() {
		if _, err := probe.SettledState(ctx, n); err != nil {
			return nil, err
		}
	}
	return l.census(ctx, programs)
}

// leaks waits until nothing new remains, and adds the rest to the row.
func (l ledger) leaks(ctx context.Context, r *report.Row, before map[string]probe.Counts, programs bool) {
	census := losses.Census(func(ctx context.Context) (map[string]probe.Counts, error) { return l.census(ctx, programs) })
	err := census.NothingLeft(ctx, before, nil)
	if err != nil {
		r.Leaks++
		r.Fail(err)
	}
}

// states returns the settled state of each node.
func (l ledger) states(ctx context.Context) (map[string]probe.State, error) {
	states := map[string]probe.State{}
	for _, n := range l.cluster.Nodes() {
		state, err := probe.SettledState(ctx, n)
		if err != nil {
			return nil, err
		}
		states[n.Name] = state
	}
	return states, nil
}

// before is the state before a fault.
type before struct {
	states   map[string]probe.State
	census   map[string]probe.Counts
	programs map[string]process.Status
	logged   map[string]int
}

// before takes the state of both nodes.
func (l ledger) before(ctx context.Context) (b before, err error) {
	b = before{states: map[string]probe.State{}, programs: map[string]process.Status{}, logged: map[string]int{}}
	for _, n := range l.cluster.Nodes() {
		if b.states[n.Name], err = probe.SettledState(ctx, n); err != nil {
			return b, err
		}
		log, err := probe.Log(ctx, l.cluster, program.Agent(n))
		if err != nil {
			return b, err
		}
		b.logged[n.Name] = len(log)
	}
	if b.census, err = l.census(ctx, false); err != nil {
		return b, err
	}
	programs, err := l.cluster.Programs(ctx)
	for _, p := range programs {
		b.programs[p.Name] = p
	}
	return b, err
}

// ended returns an error if a program ended that is not in kills, or an agent panicked.
func (l ledger) ended(ctx context.Context, was *before, kills []string) error {
	programs, err := l.cluster.Programs(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, p := range programs {
		if p.Restarts > was.programs[p.Name].Restarts && !slices.Contains(kills, p.Name) {
			errs = append(errs, fmt.Errorf("%s ended (%s), although the fault does not end it", p.Name, p.Last))
		}
		if p.Crash != was.programs[p.Name].Crash {
			errs = append(errs, fmt.Errorf("%s crashed: %s", p.Name, p.Crash))
		}
	}
	for _, n := range l.cluster.Nodes() {
		log, err := probe.Log(ctx, l.cluster, program.Agent(n))
		if err != nil {
			return err
		}
		for line := range strings.Lines(log[min(was.logged[n.Name], len(log)):]) {
			if strings.HasPrefix(line, "panic:") || strings.HasPrefix(line, "fatal error:") {
				errs = append(errs, fmt.Errorf("the agent of %s: %s", n.Name, line))
			}
		}
	}
	return errors.Join(errs...)
}
