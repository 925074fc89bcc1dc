//go:build lab

package e2e

import (
	"context"
	"errors"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"weft.dev/weft/lab"
	"weft.dev/weft/lab/podruntime"
	"weft.dev/weft/test/probe"
)

// apiAway makes the API server unreachable for the nodes. back restores it. Open connections are reset at their next packet.
func apiAway(t *testing.T, c *lab.Cluster) (back func()) {
	t.Helper()
	restore, err := probe.CutAPI(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	back = sync.OnceFunc(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := restore(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(back)
	return back
}

// While the API server is away, running pods are not affected, and pods can be added and deleted.
func TestAPIServerAway(t *testing.T) {
	c := cluster(t)
	l := newLoad(t, c, "api")
	ch := newChurn(t, c)
	l.control(t, window(5*time.Second))
	watch := watchFlows(t, c.Node(1))
	back := apiAway(t, c)
	var deleted []*lab.Pod
	l.during(t, "API server away", func() {
		for range 5 {
			deleted = append(deleted, ch.turn(t, "n1"))
			ch.turn(t, "n2")
		}
	})
	if err := watch.Check(t.Context(), deleted); err != nil {
		t.Error(err)
	}
	t.Logf("flows while the API server was away: %s", watch)
	back()
}

// An agent that starts while the API server is away does not change running pods, answers ADD with "try again later", and serves as soon
// as the API server is back.
func TestAgentStartsWithoutAPIServer(t *testing.T) {
	c := cluster(t)
	l := newLoad(t, c, "alone")
	l.control(t, window(3*time.Second))
	n := c.Node(1)
	want := settledState(t, n)
	watch := watchFlows(t, n)
	back := apiAway(t, c)
	l.during(t, "agent restarted without the API server", func() {
		kill(t, c, "n1/weft-agent", syscall.SIGKILL)
		var failure *podruntime.Failure
		var last error
		await(t, "an ADD answered by the agent", func(ctx context.Context) error {
			p, err := c.AddPod(ctx, lab.PodSpec{Node: "n1", Name: "early", NoObject: true})
			if p != nil {
				defer delPod(t, p)
			}
			if err == nil {
				t.Fatal("ADD succeeded although the agent cannot reach the API server")
			}
			if last = err; !errors.As(err, &failure) || failure.Code != codeTryAgain {
				t.Fatalf("ADD: %v, want code %d", err, codeTryAgain)
			}
			if !strings.Contains(failure.Error(), "API server") {
				return err // the agent has not started so far
			}
			return nil
		})
		t.Logf("ADD: %v", last)
		if err := stateOf(t.Context(), n).Differs(want); err != nil {
			t.Error(err)
		}
	})
	if err := watch.Check(t.Context(), nil); err != nil {
		t.Error(err)
	}
	t.Logf("flows while the API server was away: %s", watch)
	began := time.Now()
	back()
	addPod(t, c, "n1", "late")
	t.Logf("a pod was attached %s after the API server was back", time.Since(began).Round(time.Millisecond))
}
