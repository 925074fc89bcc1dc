//go:build lab

package e2e

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"weft.dev/weft/lab"
	"weft.dev/weft/test/probe"
	"weft.dev/weft/test/traffic"
)

// pairs is the number of pairs of pods that exchange packets.
const pairs = 5

// load is traffic between pairs of pods on two nodes.
type load struct {
	from, to []*lab.Pod
	running  *traffic.Load
}

// newLoad starts the pods with their servers.
func newLoad(t *testing.T, c *lab.Cluster, name string) *load {
	t.Helper()
	var names [][2]string
	for i := range pairs {
		names = append(names, [2]string{"n1", fmt.Sprintf("%s-%d-a", name, i)}, [2]string{"n2", fmt.Sprintf("%s-%d-b", name, i)})
	}
	l := &load{}
	for i, p := range addPods(t, c, names...) {
		// Every other pair sends in the other direction.
		if (i%2 == 0) == (i/2%2 == 0) {
			l.from = append(l.from, p)
		} else {
			l.to = append(l.to, p)
		}
	}
	for i, p := range l.to {
		echo(t, p.Netns, p.IPs[0])
		ping(t, l.from[i].Netns, p.IPs[0])
	}
	return l
}

func (l *load) start(t *testing.T) {
	t.Helper()
	var pairs []traffic.Pair
	for i, p := range l.from {
		pairs = append(pairs, traffic.Pair{Name: p.Name, From: p.Netns, To: addrPort(l.to[i])})
	}
	var err error
	if l.running, err = traffic.NewLoad(pairs, *pairRate); err != nil {
		t.Fatal(err)
	}
}

// stop returns the numbers of sent and lost datagrams.
func (l *load) stop() (sent, lost uint64, err error) {
	tallies, err := l.running.Stop()
	for _, tally := range tallies {
		sent, lost = sent+tally.Sent, lost+tally.Lost
	}
	return sent, lost, err
}

// control runs the same traffic without changes to the network. A machine that loses packets then cannot give a result.
func (l *load) control(t *testing.T, length time.Duration) {
	t.Helper()
	l.start(t)
	select {
	case <-time.After(length): // the duration of the traffic
	case <-t.Context().Done():
	}
	sent, lost, err := l.stop()
	if lost > 0 {
		t.Fatalf("machine too busy: %d of %d packets lost without a fault: %v", lost, sent, err)
	}
	t.Logf("control: %d packets in %s, none lost", sent, length)
}

// during runs f under traffic, and fails the test if a packet was lost.
func (l *load) during(t *testing.T, what string, f func()) {
	t.Helper()
	l.start(t)
	defer func() {
		sent, lost, err := l.stop()
		if lost > 0 {
			t.Errorf("%s: %d of %d packets lost: %v", what, lost, sent, err)
			return
		}
		t.Logf("%s: %d packets, none lost", what, sent)
	}()
	f()
}

// Running pods do not notice a restart of the agent, by SIGTERM or SIGKILL, also while pods are added and deleted: an upgrade needs no
// drain.
func TestAgentRestarts(t *testing.T) {
	c := cluster(t)
	l := newLoad(t, c, "restart")
	l.control(t, window(15*time.Second))
	watches := map[string]*probe.FlowWatch{}
	for _, n := range c.Nodes() {
		watches[n.Name] = watchFlows(t, n)
	}
	churn := newChurn(t, c)
	deleted := map[string][]*lab.Pod{}
	var slowest time.Duration
	l.during(t, fmt.Sprintf("%d restarts", *restarts), func() {
		for i := range *restarts {
			node, signal := c.Node(1+i%2).Name, []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL}[i/2%2]
			began := time.Now()
			pid := signalProgram(t, c, node+"/weft-agent", signal)
			gone := churn.turn(t, node)
			deleted[node] = append(deleted[node], gone)
			slowest = max(slowest, time.Since(began))
			// An agent that ends completes the requests that it has, which may be all of this turn's.
			await(t, "the next agent of "+node, func(ctx context.Context) error {
				now, err := program(ctx, c, node+"/weft-agent")
				if err == nil && now.Pid == pid {
					err = fmt.Errorf("%w: pid %d", errSameAgent, pid)
				}
				return err
			})
			await(t, node+" ready", func(ctx context.Context) error { return ready(ctx, c.Node(1+i%2)) })
		}
	})
	for node, watch := range watches {
		err := watch.Check(t.Context(), deleted[node])
		t.Logf("%s: %s", node, watch)
		if err != nil {
			t.Errorf("%s: %v", node, err)
		}
	}
	t.Logf("slowest restart: %s from the signal until the new pod was attached and reached and the old one deleted", slowest.Round(time.Millisecond))
}

var errSameAgent = errors.New("the former agent still runs")

// churn keeps one pod on each node, which each turn replaces.
type churn struct {
	cluster *lab.Cluster
	pods    map[string]*lab.Pod
	turns   int
}

func newChurn(t *testing.T, c *lab.Cluster) *churn {
	t.Helper()
	ch := &churn{cluster: c, pods: map[string]*lab.Pod{}}
	for _, n := range c.Nodes() {
		ch.pods[n.Name] = addPod(t, c, n.Name, "churn-"+n.Name)
	}
	return ch
}

// turn deletes a node's pod and creates another one concurrently. It checks that the new one is reachable from the other node, and
// returns the deleted one.
func (ch *churn) turn(t *testing.T, node string) *lab.Pod {
	t.Helper()
	old := ch.pods[node]
	ch.turns++
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var group errgroup.Group
	group.Go(func() error { return retryDetach(ctx, old) })
	var fresh *lab.Pod
	group.Go(func() (err error) {
		fresh, err = tryAddPod(ctx, ch.cluster, lab.PodSpec{Node: node, Name: fmt.Sprintf("churn-%d", ch.turns), NoObject: true})
		return err
	})
	err := group.Wait()
	if fresh != nil {
		ch.pods[node] = fresh
		t.Cleanup(func() { delPod(t, fresh) })
	}
	if err != nil {
		t.Fatal(err)
	}
	for other, p := range ch.pods {
		if other != node {
			echo(t, fresh.Netns, fresh.IPs[0])
			ping(t, p.Netns, fresh.IPs[0])
		}
	}
	return old
}
