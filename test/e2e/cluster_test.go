//go:build lab

package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"weft.dev/weft/lab"
	"weft.dev/weft/lab/podruntime"
	"weft.dev/weft/lab/process"
	"weft.dev/weft/test/traffic"
)

const (
	// patience is how long a test waits for what happens by itself.
	patience = 30 * time.Second
	// echoPort is where pods and hosts answer.
	echoPort = 7777
)

// cluster returns the lab, and fails the test if a node does not serve.
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

// ready asks a node's agent whether it serves, as its readiness probe does.
func ready(ctx context.Context, n lab.Node) error {
	_, err := askAgent(ctx, n, "/readyz")
	return err
}

// askAgent gets a page of an agent's health endpoint. A page that is not well is an error.
func askAgent(ctx context.Context, n lab.Node, page string) (string, error) {
	client := &http.Client{Timeout: time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(_ context.Context, protocol, address string) (conn net.Conn, err error) {
			err = traffic.In(n.Netns, func() (err error) {
				conn, err = net.DialTimeout(protocol, address, time.Second)
				return err
			})
			return conn, err
		},
	}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:9469"+page, nil)
	if err != nil {
		return "", err
	}
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer func() { _ = response.Body.Close() }()
	said, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", response.Status, said)
	}
	return string(said), err
}

// await waits until f returns nil, and returns how long that took.
func await(t *testing.T, what string, f func(context.Context) error) time.Duration {
	t.Helper()
	return awaitWithin(t, patience, what, f)
}

func awaitWithin(t *testing.T, limit time.Duration, what string, f func(context.Context) error) time.Duration {
	t.Helper()
	begin := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	var err error
	for {
		now := f(ctx)
		if now == nil {
			return time.Since(begin)
		}
		if err == nil || ctx.Err() == nil { // else it was the end of the wait that failed
			err = now
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: not within %s: %v", what, limit, err)
		case <-ticker.C:
		}
	}
}

// run runs a command and returns what it wrote.
func run(ctx context.Context, argv []string) (string, error) {
	out, err := exec.CommandContext(ctx, argv[0], argv[1:]...).CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, out)
	}
	return string(out), nil
}

func mustRun(t *testing.T, argv []string) string {
	t.Helper()
	out, err := run(t.Context(), argv)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// addPod starts a pod as a kubelet does, which tries again when it is told to. It goes with the test.
func addPod(t *testing.T, c *lab.Cluster, node, name string) *lab.Pod {
	t.Helper()
	p, err := tryAddPod(t.Context(), c, lab.PodSpec{Node: node, Name: name, NoObject: true})
	if p != nil {
		t.Cleanup(func() { delPod(t, p) })
	}
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// addPods starts pods at the same time.
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
const codeTryAgain = 11

// tryAddPod adds a pod; what says "try again later" it tries again, with a new sandbox, as a kubelet does.
func tryAddPod(ctx context.Context, c *lab.Cluster, spec lab.PodSpec) (*lab.Pod, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		p, err := c.AddPod(ctx, spec)
		var failure *podruntime.Failure
		if err == nil || !errors.As(err, &failure) || failure.Code != codeTryAgain || ctx.Err() != nil {
			return p, err
		}
		if err := retryDetach(ctx, p); err != nil {
			return nil, err
		}
	}
}

// retryDetach ends a pod's sandbox, trying again while the agent says so.
func retryDetach(ctx context.Context, p *lab.Pod) error {
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for {
		_, err := p.Detach(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-ticker.C:
		}
	}
}

// delPod ends a pod at the end of its test; repeating it is no error.
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

// ping waits until a datagram from a namespace is answered, and returns how long that took at last.
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

// program returns what is known of one of the lab's programs.
func program(ctx context.Context, c *lab.Cluster, name string) (process.Status, error) {
	all, err := c.Programs(ctx)
	if err != nil {
		return process.Status{}, err
	}
	i := slices.IndexFunc(all, func(s process.Status) bool { return s.Name == name })
	if i < 0 || all[i].Pid == 0 {
		return process.Status{}, fmt.Errorf("%s does not run", name)
	}
	return all[i], nil
}

// kill sends a signal to one of the lab's programs, which its supervisor then starts again, and waits until that has
// happened.
func kill(t *testing.T, c *lab.Cluster, name string, signal syscall.Signal) {
	t.Helper()
	old := signalProgram(t, c, name, signal)
	await(t, name+" running again", func(ctx context.Context) error {
		now, err := program(ctx, c, name)
		if err == nil && now.Pid == old {
			return fmt.Errorf("%s still has number %d", name, old)
		}
		return err
	})
}

// signalProgram sends a signal to one of the lab's programs and returns its number.
func signalProgram(t *testing.T, c *lab.Cluster, name string, signal syscall.Signal) int {
	t.Helper()
	var pid int
	await(t, name+" running", func(ctx context.Context) error {
		status, err := program(ctx, c, name)
		pid = status.Pid
		return err
	})
	if err := syscall.Kill(pid, signal); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return pid
}

// logOf returns what one of the lab's programs has logged.
func logOf(t *testing.T, c *lab.Cluster, name string) string {
	t.Helper()
	status, err := program(t.Context(), c, name)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(status.Log)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// state is all that the agent keeps on a node, as the tools of the node tell it.
type state map[string]string

// questions are what a state is made of.
func questions() map[string][]string {
	return map[string][]string{
		"flows":     {"ovs-ofctl", "-O", "OpenFlow15", "--no-stats", "--no-names", "dump-flows", "br0"},
		"groups":    {"ovs-ofctl", "-O", "OpenFlow15", "dump-groups", "br0"},
		"ports":     {"ovs-vsctl", "--columns=name,ofport,type,options,error", "find", "Interface", "ofport!=65534"},
		"bridge":    {"ovs-vsctl", "--columns=name,datapath_type,fail_mode,protocols", "find", "Bridge", "name=br0"},
		"addresses": {"ip", "-4", "-o", "addr", "show", "tun0"},
		"link":      {"ip", "-o", "link", "show", "tun0"},
		"routes":    {"ip", "-4", "route", "show", "dev", "tun0"},
		"inet weft": {"nft", "-s", "list", "table", "inet", "weft"},
		"arp weft":  {"nft", "-s", "list", "table", "arp", "weft"},
	}
}

// volatile is what differs between two states that are the same: numbers that the kernel gives, and names of handles.
var volatile = regexp.MustCompile(`(?m)^\d+: |valid_lft \S+ preferred_lft \S+|qlen \d+|state \S+| # handle \d+`) //nolint:gochecknoglobals // a constant

// stateOf reads a node's state; what cannot be read is part of it.
func stateOf(ctx context.Context, n lab.Node) state {
	s := state{}
	var mu sync.Mutex
	var group sync.WaitGroup
	for name, question := range questions() {
		group.Go(func() {
			out, err := run(ctx, n.Enter(question...))
			if err != nil {
				out = err.Error()
			}
			sorted := slices.Sorted(strings.Lines(volatile.ReplaceAllString(out, "")))
			mu.Lock()
			defer mu.Unlock()
			s[name] = strings.Join(sorted, "")
		})
	}
	group.Wait()
	return s
}

// differs returns an error that names what differs from a state, line by line.
func (s state) differs(want state) error {
	var errs []error
	for name := range questions() {
		if s[name] == want[name] {
			continue
		}
		have, wanted := slices.Collect(strings.Lines(s[name])), slices.Collect(strings.Lines(want[name]))
		missing, further := without(wanted, have), without(have, wanted)
		errs = append(errs, fmt.Errorf("%s: %d lines missing, %d too many:\n- %s+ %s", name, len(missing), len(further),
			strings.Join(missing[:min(5, len(missing))], "- "), strings.Join(further[:min(5, len(further))], "+ ")))
	}
	return errors.Join(errs...)
}

func without(lines, taken []string) []string {
	return slices.DeleteFunc(slices.Clone(lines), func(line string) bool { return slices.Contains(taken, line) })
}

// awaitState waits until a node is as it was, and returns how long that took.
func awaitState(t *testing.T, n lab.Node, want state, after string) time.Duration {
	t.Helper()
	return await(t, n.Name+" as it was, after "+after, func(ctx context.Context) error { return stateOf(ctx, n).differs(want) })
}

// addrPort is where a pod answers.
func addrPort(p *lab.Pod) netip.AddrPort { return netip.AddrPortFrom(p.IPs[0], echoPort) }

// asFailure tells whether an error is the network's own.
func asFailure(err error, failure **podruntime.Failure) bool { return errors.As(err, failure) }
