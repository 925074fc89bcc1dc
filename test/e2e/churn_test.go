//go:build lab

package e2e

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"weft.dev/weft/lab"
	"weft.dev/weft/test/probe"
)

const (
	atATime   = 16
	churnTime = 4 * time.Minute
)

// Deleted pods leave nothing behind, however many: no address, interface, port, flow, file, descriptor or goroutine. The agent's memory
// is printed.
func TestChurn(t *testing.T) {
	c := cluster(t)
	warm := addPods(t, c, [2]string{"n1", "warm-1"}, [2]string{"n2", "warm-2"}) // so that lazily opened resources are open
	for _, p := range warm {
		delPod(t, p)
	}
	before := map[string]probe.Counts{}
	for _, n := range c.Nodes() {
		settledState(t, n)
		have, err := probe.Count(t.Context(), c, n)
		if err != nil {
			t.Fatal(err)
		}
		before[n.Name] = have
	}
	ctx, cancel := context.WithTimeout(t.Context(), churnTime)
	defer cancel()
	memory := memoryOf(t, c)
	var adds, dels []time.Duration
	for round := range *rounds {
		began := time.Now()
		a, d := churnRound(ctx, t, c, round)
		adds, dels = append(adds, a...), append(dels, d...)
		t.Logf("round %d: %d pods in %s; the agent of n1 has %d KiB", round+1, *perRound, time.Since(began).Round(time.Millisecond), memoryOf(t, c))
	}
	for _, n := range c.Nodes() {
		var have probe.Counts
		took := await(t, n.Name+" without leftovers", func(ctx context.Context) (err error) {
			if have, err = probe.Count(ctx, c, n); err != nil {
				return err
			}
			return have.More(before[n.Name])
		})
		t.Logf("%s: leftovers removed after %s: %v", n.Name, took.Round(time.Millisecond), have)
	}
	t.Logf("ADD: median %s, 95 %% %s, longest %s; DEL: median %s, 95 %% %s, longest %s; %d at a time; memory of the agent %d KiB before",
		quantile(adds, 0.5), quantile(adds, 0.95), quantile(adds, 1), quantile(dels, 0.5), quantile(dels, 0.95), quantile(dels, 1), atATime, memory)
}

// churnRound adds pods on both nodes in turn, then deletes them, and returns the duration of each ADD and DEL.
func churnRound(ctx context.Context, t *testing.T, c *lab.Cluster, round int) (adds, dels []time.Duration) {
	t.Helper()
	pods := make([]*lab.Pod, *perRound)
	var mu sync.Mutex
	var group errgroup.Group
	group.SetLimit(atATime)
	for i := range pods {
		group.Go(func() (err error) {
			pods[i], err = c.AddPod(ctx, lab.PodSpec{Node: c.Node(1 + i%2).Name, Name: fmt.Sprintf("churn-%d-%d", round, i), NoObject: true})
			if err == nil {
				mu.Lock()
				defer mu.Unlock()
				adds = append(adds, pods[i].Took)
			}
			return err
		})
	}
	addErr := group.Wait()
	seen := map[string]bool{}
	for _, p := range pods {
		if p == nil || len(p.IPs) == 0 {
			continue
		}
		if seen[p.IPs[0].String()] {
			t.Errorf("two pods have %s", p.IPs[0])
		}
		seen[p.IPs[0].String()] = true
	}
	group = errgroup.Group{}
	group.SetLimit(atATime)
	for _, p := range pods {
		if p == nil {
			continue
		}
		group.Go(func() error {
			took, err := p.Detach(ctx)
			mu.Lock()
			defer mu.Unlock()
			dels = append(dels, took)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	if addErr != nil {
		t.Fatal(addErr)
	}
	return adds, dels
}

func quantile(times []time.Duration, q float64) time.Duration {
	sorted := slices.Sorted(slices.Values(times))
	return sorted[int(q*float64(len(sorted)-1))].Round(100 * time.Microsecond)
}

// memoryOf returns the resident memory of the first node's agent, in KiB.
func memoryOf(t *testing.T, c *lab.Cluster) int {
	t.Helper()
	kib, err := probe.Memory(t.Context(), c, "n1/weft-agent")
	if err != nil {
		t.Fatal(err)
	}
	return kib
}
