package overlay

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"weft.dev/weft/lab"
	"weft.dev/weft/test/probe"
	"weft.dev/weft/test/soak/overlay/kubelet"
	"weft.dev/weft/test/soak/overlay/program"
	"weft.dev/weft/test/soak/report"
)

const (
	// addsAKill and delsAKill are the numbers of requests that each kill can interrupt.
	addsAKill = 3
	delsAKill = 3
	// forgottenOneIn is how often the runtime loses a sandbox instead of deleting it, and collects garbage later.
	forgottenOneIn = 4
	// calibrations is the number of rounds without a kill, which measure how long requests take.
	calibrations = 10
)

// tally counts the results of the kills.
type tally struct {
	mu                      sync.Mutex
	kills                   int
	adds, dels              int // requests that were running when the agent was killed
	added, refused, deleted int // the results of the ADDs and DELs of all rounds
	forgotten               int
	slowest                 time.Duration
}

// kills is a run of the part Kills.
type kills struct {
	*Stage
	tally tally
}

// Kills kills agents at random points of ADD and DEL of several concurrent sandboxes. Then the runtime does what runtimes do: it repeats
// DELs, deletes sandboxes whose ADD failed, or collects garbage. Each time the node must have its former state.
func Kills(ctx context.Context, s *Stage) error {
	r := report.Row{Part: "kills", Name: "agents killed during ADD and DEL"}
	began := time.Now()
	defer func() {
		r.Took = time.Since(began)
		s.report.Add(r)
	}()
	before, err := s.ledger.rest(ctx, false)
	if err != nil {
		return err
	}
	k := &kills{Stage: s}
	var group errgroup.Group
	for i, n := range s.cluster.Nodes() {
		share := s.opts.Kills / 2
		if i == 0 {
			share = s.opts.Kills - share
		}
		group.Go(func() error { return k.one(ctx, n, share) })
	}
	r.Fail(group.Wait())
	s.ledger.leaks(ctx, &r, before, false)
	r.Fail(s.cast.Reach(ctx))
	r.Fail(s.siege.Honest(ctx))
	s.holes(&r)
	t := &k.tally
	r.Count, r.Back = t.kills, t.slowest
	r.Note = fmt.Sprintf("%d ADDs and %d DELs were under way when their agent was killed; of all: %d ADDs answered, %d not; %d DELs answered; %d sandboxes forgotten",
		t.adds, t.dels, t.added, t.refused, t.deleted, t.forgotten)
	if r.Count > 20 && (t.adds < r.Count/4 || t.dels < r.Count/4) {
		r.Fail(fmt.Errorf("too few kills interrupted a request to prove anything: %s", r.Note))
	}
	return ctx.Err()
}

// one kills one node's agent the given number of times.
func (k *kills) one(ctx context.Context, n lab.Node, times int) error {
	want, err := probe.SettledState(ctx, n)
	if err != nil {
		return err
	}
	// The duration of a round's requests limits the time of the kills.
	var span time.Duration
	for range calibrations {
		took, err := k.round(ctx, n, want, 0)
		if err != nil {
			return fmt.Errorf("%s: without a kill: %w", n.Name, err)
		}
		span = max(span, took)
	}
	k.report.Say("kills: the requests of a round take up to %s on %s", span.Round(time.Millisecond), n.Name)
	for i := range times {
		if _, err := k.round(ctx, n, want, span); err != nil {
			return fmt.Errorf("%s: kill %d: %w", n.Name, i+1, err)
		}
		if (i+1)%50 == 0 {
			k.report.Say("kills: %d of %d on %s", i+1, times, n.Name)
		}
	}
	return nil
}

// request is an ADD or a DEL of a round.
type request struct {
	add        bool
	pod        *lab.Pod
	begun, end time.Time
	err        error
}

// round adds some sandboxes and deletes others concurrently, and kills the agent at a random time within the span, if that is not 0.
// It returns how long the requests took.
func (k *kills) round(ctx context.Context, n lab.Node, want probe.State, span time.Duration) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*probe.Patience)
	defer cancel()
	leaving, err := kubelet.AddSome(ctx, k.cluster, n, delsAKill)
	if err != nil {
		return 0, err
	}
	requests := make([]request, addsAKill+delsAKill)
	begun := time.Now()
	var group sync.WaitGroup
	for i := range requests {
		q := &requests[i]
		if q.add = i < addsAKill; !q.add {
			q.pod = leaving[i-addsAKill]
		}
		delay := k.chance.within(max(span/4, time.Millisecond))
		group.Go(func() { k.ask(ctx, n, q, delay) })
	}
	var killed time.Time
	old := 0
	if span > 0 {
		<-time.After(k.chance.within(span))
		killed = time.Now()
		if old, err = probe.Signal(ctx, k.cluster, program.Agent(n), syscall.SIGKILL); err != nil {
			return 0, err
		}
	}
	group.Wait()
	took := time.Since(begun)
	k.tally.count(requests, killed)
	if span > 0 {
		if err := program.AwaitAgent(ctx, k.cluster, n, old); err != nil {
			return took, err
		}
	}
	if err := k.clean(ctx, n, requests, span > 0); err != nil {
		return took, err
	}
	back, err := probe.AwaitState(ctx, n, want, "a kill")
	k.tally.mu.Lock()
	k.tally.slowest = max(k.tally.slowest, back)
	k.tally.mu.Unlock()
	return took, err
}

// ask makes a request once, as runtimes do.
func (k *kills) ask(ctx context.Context, n lab.Node, q *request, delay time.Duration) {
	<-time.After(delay)
	q.begun = time.Now()
	if q.add {
		q.pod, q.err = k.cluster.AddPod(ctx, lab.PodSpec{Node: n.Name, Name: "killed", NoObject: true})
	} else {
		_, q.err = q.pod.Detach(ctx)
	}
	q.end = time.Now()
}

// count counts the results of a round's requests.
func (t *tally) count(requests []request, killed time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !killed.IsZero() {
		t.kills++
	}
	for _, q := range requests {
		caught := !killed.IsZero() && q.begun.Before(killed) && q.end.After(killed)
		switch {
		case q.add && q.err == nil:
			t.added++
		case q.add:
			t.refused++
		case q.err == nil:
			t.deleted++
		}
		if caught && q.add {
			t.adds++
		} else if caught {
			t.dels++
		}
	}
}

// clean does what a runtime does after a kill: it deletes a running pod and a sandbox whose ADD failed, and repeats a failed DEL. It
// loses some sandboxes and leaves them to garbage collection.
func (k *kills) clean(ctx context.Context, n lab.Node, requests []request, killed bool) error {
	forgotten := 0
	var group errgroup.Group
	for i := range requests {
		q := &requests[i]
		if err := k.judge(ctx, q); err != nil {
			return errors.Join(err, group.Wait())
		}
		if killed && q.err != nil && k.chance.within(forgottenOneIn) == 0 {
			if err := kubelet.Forget(ctx, q.pod); err != nil {
				return errors.Join(err, group.Wait())
			}
			forgotten++
			continue
		}
		group.Go(func() error { return probe.Detach(ctx, q.pod) })
	}
	if err := group.Wait(); err != nil || forgotten == 0 {
		return err
	}
	k.tally.mu.Lock()
	k.tally.forgotten += forgotten
	k.tally.mu.Unlock()
	return n.CollectGarbage(ctx)
}

// judge returns an error unless a request ended correctly: an answered ADD has made a working pod, whenever the agent was killed; another
// ADD has an error of the network plugin.
func (k *kills) judge(ctx context.Context, q *request) error {
	_, ofTheNetwork := probe.AsFailure(q.err)
	switch {
	case q.pod == nil || q.err != nil && !ofTheNetwork:
		return q.err
	case q.add && q.err == nil:
		if err := errors.Join(q.pod.Check(ctx), k.cast.Reached(ctx, q.pod)); err != nil {
			return fmt.Errorf("an ADD that was answered: %w", err)
		}
	}
	return nil
}
