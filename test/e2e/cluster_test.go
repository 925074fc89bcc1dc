//go:build lab

package e2e

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"weft.dev/weft/lab"
	"weft.dev/weft/lab/podruntime"
	"weft.dev/weft/lab/process"
	"weft.dev/weft/test/probe"
	"weft.dev/weft/test/traffic"
)

const (
	// patience is the time limit of waits for changes.
	patience = probe.Patience
	// echoPort is the port where pods and hosts answer.
	echoPort = 7777
)

// cluster returns the lab, and fails the test if a node is not ready.
func cluster(t *testing.T) *lab.Cluster {
	t.Helper()
	c, err := lab.Open(t.Context(), *labName)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range c.Nodes() {
		await(t, n.Name+" ready", func(ctx context.Context) error { return ready(ctx, n) })
	}
	return c
}

// ready calls a node's readiness probe.
func ready(ctx context.Context, n lab.Node) error { return probe.Ready(ctx, n) }

// await waits until f returns nil, and returns how long that took.
func await(t *testing.T, what string, f func(context.Context) error) time.Duration {
	t.Helper()
	return awaitWithin(t, patience, what, f)
}

// long is how long a wait takes at most if nothing is slow. What takes longer is logged.
const long = 5 * time.Second

func awaitWithin(t *testing.T, limit time.Duration, what string, f func(context.Context) error) time.Duration {
	t.Helper()
	took, err := probe.Await(t.Context(), limit, what, f)
	if err != nil {
		t.Fatal(err)
	}
	if took > long {
		t.Logf("%s: only after %s", what, took.Round(time.Millisecond))
	}
	return took
}

// run runs a command and returns its output.
func run(ctx context.Context, argv []string) (string, error) { return probe.Run(ctx, argv) }

func mustRun(t *testing.T, argv []string) string {
	t.Helper()
	out, err := run(t.Context(), argv)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// addPod starts a pod as a kubelet does, which retries after "try again later". The pod is deleted when the test ends.
func addPod(t *testing.T, c *lab.Cluster, node, name string) *lab.Pod {
	t.Helper()
	return addPodAs(t, c, lab.PodSpec{Node: node, Name: name, NoObject: true})
}

// addPodAs starts a pod. It is deleted when the test ends.
func addPodAs(t *testing.T, c *lab.Cluster, spec lab.PodSpec) *lab.Pod {
	t.Helper()
	p, err := tryAddPod(t.Context(), c, spec)
	if p != nil {
		t.Cleanup(func() { delPod(t, p) })
	}
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// addPods starts pods concurrently.
func addPods(t *testing.T, c *lab.Cluster, names ...[2]string) []*lab.Pod {
	t.Helper()
	pods := make([]*lab.Pod, len(names))
	var group errgroup.Group
	for i, name := range names {
		group.Go(func() (err error) {
			pods[i], err = tryAddPod(t.Context(), c, lab.PodSpec{Node: name[0], Name: name[1], NoObject: true})
			return err
		})
	}
	err := group.Wait()
	for _, p := range pods {
		if p != nil {
			t.Cleanup(func() { delPod(t, p) })
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return pods
}

// codeTryAgain is the CNI specification's "try again later".
const codeTryAgain = probe.CodeTryAgain

// tryAddPod adds a pod. After "try again later" it retries with a new sandbox, as a kubelet does.
func tryAddPod(ctx context.Context, c *lab.Cluster, spec lab.PodSpec) (*lab.Pod, error) {
	return probe.AddPod(ctx, c, spec)
}

// retryDetach ends a pod's sandbox, and retries after "try again later".
func retryDetach(ctx context.Context, p *lab.Pod) error { return probe.Detach(ctx, p) }

// delPod deletes a pod when its test ends. Repeating it is not an error.
func delPod(t *testing.T, p *lab.Pod) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := retryDetach(ctx, p); err != nil {
		t.Errorf("ending pod %s: %v", p.Name, err)
	}
}

// echo answers UDP in a namespace until the test ends.
func echo(t *testing.T, netns string, ip netip.Addr) *traffic.Echo {
	t.Helper()
	e, err := traffic.NewEcho(netns, netip.AddrPortFrom(ip, echoPort))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() })
	return e
}

// ping waits until a datagram from a namespace is answered, and returns the duration of the last attempt.
func ping(t *testing.T, from string, to netip.Addr) time.Duration {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	took, err := traffic.Ping(ctx, from, netip.AddrPortFrom(to, echoPort))
	if err != nil {
		t.Fatal(err)
	}
	return took
}

// program returns the status of one of the lab's programs.
func program(ctx context.Context, c *lab.Cluster, name string) (process.Status, error) {
	return probe.Program(ctx, c, name)
}

// kill sends a signal to one of the lab's programs, and waits until its supervisor has restarted it.
func kill(t *testing.T, c *lab.Cluster, name string, signal syscall.Signal) {
	t.Helper()
	if err := probe.Kill(t.Context(), c, name, signal); err != nil {
		t.Fatal(err)
	}
}

// signalProgram sends a signal to one of the lab's programs and returns its PID.
func signalProgram(t *testing.T, c *lab.Cluster, name string, signal syscall.Signal) int {
	t.Helper()
	pid, err := probe.Signal(t.Context(), c, name, signal)
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

// hang stops one of the lab's programs without ending it. goOn, or the test's end, continues it.
func hang(t *testing.T, c *lab.Cluster, name string) (goOn func()) {
	t.Helper()
	pid := signalProgram(t, c, name, syscall.SIGSTOP)
	goOn = sync.OnceFunc(func() {
		if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(goOn)
	return goOn
}

// logOf returns the log of one of the lab's programs.
func logOf(t *testing.T, c *lab.Cluster, name string) string {
	t.Helper()
	log, err := probe.Log(t.Context(), c, name)
	if err != nil {
		t.Fatal(err)
	}
	return log
}

// stateOf reads a node's state, including read errors.
func stateOf(ctx context.Context, n lab.Node) probe.State { return probe.StateOf(ctx, n) }

// settledState returns a node's state once it is the same twice in succession: removals are complete.
func settledState(t *testing.T, n lab.Node) probe.State {
	t.Helper()
	s, err := probe.SettledState(t.Context(), n)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// awaitState waits until a node has the state again, and returns how long that took.
func awaitState(t *testing.T, n lab.Node, want probe.State, after string) time.Duration {
	t.Helper()
	took, err := probe.AwaitState(t.Context(), n, want, after)
	if err != nil {
		t.Fatal(err)
	}
	return took
}

// addrPort is the address and port where a pod answers.
func addrPort(p *lab.Pod) netip.AddrPort { return netip.AddrPortFrom(p.IPs[0], echoPort) }

// asFailure reports whether an error is an error of the network plugin.
func asFailure(err error, failure **podruntime.Failure) bool { return errors.As(err, failure) }
