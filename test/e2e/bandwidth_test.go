//go:build lab

package e2e

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"weft.dev/weft/lab"
	"weft.dev/weft/lab/podruntime"
	"weft.dev/weft/test/probe"
	"weft.dev/weft/test/traffic"
)

const (
	floodPort = 7794
	// warmUp is not measured. measured is the usual time of the first measurement, again that of each further one.
	warmUp   = 5 * time.Second
	measured = 20 * time.Second
	again    = 12 * time.Second
	// transferred is the size of a TCP transfer, in bytes.
	transferred = 256 << 10
	// measurements is how often a rate below its limit is measured at most: a machine that stands still for a second disturbs one of
	// them. A limit that is not in effect shows in each.
	measurements = 3
	// othersRate is the rate of other pods' datagrams per second meanwhile. None may be lost.
	othersRate = 100
	// above and below are the permitted relative differences between a rate and its limit. A sender that the machine delays does not catch
	// up, so the lower bound is wider.
	above, below = 0.05, 0.15
)

// limits are a pod's limits in bits per second, as a runtime passes them.
type limits struct{ ingress, egress uint64 }

func (l limits) capabilities() map[string]any {
	return map[string]any{"bandwidth": map[string]any{ // as containerd writes it, with its value for no limit
		"IngressRate": l.ingress, "IngressBurst": uint64(math.MaxUint32), "EgressRate": l.egress, "EgressBurst": uint64(math.MaxUint32),
	}}
}

// limited is a flood through a limit.
type limited struct {
	name  string
	limit uint64
	flood *traffic.Flood
}

// limitedPods are two pods with limits, on two nodes, and two without limits.
type limitedPods struct {
	near, far, plainNear, plainFar *lab.Pod
	floods                         []limited
}

func newLimitedPods(t *testing.T, c *lab.Cluster) *limitedPods {
	t.Helper()
	plain := addPods(t, c, [2]string{"n1", "bw-plain-near"}, [2]string{"n2", "bw-plain-far"})
	p := &limitedPods{plainNear: plain[0], plainFar: plain[1]}
	share := func(limit float64) uint64 { return uint64(limit * *bandwidth) }
	ofNear, ofFar := limits{share(2_000_000), share(1_000_000)}, limits{share(1_250_000), share(1_750_000)}
	p.near, p.far = addLimited(t, c, "n1", "bw-near", ofNear), addLimited(t, c, "n2", "bw-far", ofFar)
	transfer(t, p.near, p.far)
	transfer(t, p.far, p.near)
	p.flood(t, "traffic to bw-near", p.plainFar, p.near, ofNear.ingress)
	p.flood(t, "traffic from bw-near", p.near, p.plainFar, ofNear.egress)
	p.flood(t, "traffic to bw-far", p.plainNear, p.far, ofFar.ingress)
	p.flood(t, "traffic from bw-far", p.far, p.plainNear, ofFar.egress)
	return p
}

// transfer sends data by TCP from one pod to another; all of it must arrive.
func transfer(t *testing.T, from, to *lab.Pod) {
	t.Helper()
	at := netip.AddrPortFrom(to.IPs[0], floodPort)
	sink, err := traffic.NewSink(to.Netns, at)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sink.Close() }()
	ping := func(ctx context.Context) error {
		_, err := traffic.Send(ctx, from.Netns, at, 1)
		return err
	}
	await(t, from.Name+" reaches "+to.Name, ping)
	sent, err := traffic.Send(t.Context(), from.Netns, at, transferred)
	if err != nil {
		t.Fatalf("%s to %s: %v", from.Name, to.Name, err)
	}
	t.Logf("TCP from %s to %s: %.3f Mbit/s", from.Name, to.Name, float64(sent.Bytes)*8/sent.Took.Seconds()/1e6)
}

func addLimited(t *testing.T, c *lab.Cluster, node, name string, l limits) *lab.Pod {
	t.Helper()
	return addPodAs(t, c, lab.PodSpec{Node: node, Namespace: "default", Name: name, NoObject: true, Capabilities: l.capabilities()})
}

// flood sends 1.5 times the limit.
func (p *limitedPods) flood(t *testing.T, name string, from, to *lab.Pod, limit uint64) {
	t.Helper()
	flood, err := traffic.NewFlood(from.Netns, to.Netns, netip.AddrPortFrom(to.IPs[0], floodPort), limit*3/2)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := flood.Close(); err != nil {
			t.Error(err)
		}
	})
	p.floods = append(p.floods, limited{name, limit, flood})
}

// rates returns the received rate of each flood in bits per second, while f runs, and at least for the given time.
func (p *limitedPods) rates(t *testing.T, length time.Duration, f func()) []float64 {
	t.Helper()
	began, rates := time.Now(), make([]float64, len(p.floods))
	before := make([]uint64, len(p.floods))
	for i := range p.floods {
		before[i] = p.floods[i].flood.Arrived()
	}
	f()
	sleep(t, length-time.Since(began))
	for i := range p.floods {
		rates[i] = float64(p.floods[i].flood.Arrived()-before[i]) * 8 / time.Since(began).Seconds()
	}
	return rates
}

// errFew is the reason of rates below their limits: the machine may have been busy.
var errFew = errors.New("less than the limit")

// during measures the received rates while f runs, and at least for the given time. If one of them is below its limit, f runs again.
func (p *limitedPods) during(t *testing.T, what string, length time.Duration, f func()) {
	t.Helper()
	var err error
	for range measurements {
		if err = p.measure(t, what, length, f); !errors.Is(err, errFew) {
			break
		}
		t.Log(err)
	}
	if err != nil {
		t.Error(err)
	}
}

// measure measures the received rates while f runs, and returns an error that names those that are not at their limits: errFew if none is above.
func (p *limitedPods) measure(t *testing.T, what string, length time.Duration, f func()) error {
	t.Helper()
	rates := p.rates(t, length, f)
	var more, few []error
	for i, l := range p.floods {
		rate := rates[i]
		t.Logf("%s: %s: %.3f Mbit/s of %.2f", what, l.name, rate/1e6, float64(l.limit)/1e6)
		switch relative := rate / float64(l.limit); {
		case relative > 1+above:
			more = append(more, fmt.Errorf("%s: %s: %.0f bit/s, limit %d", what, l.name, rate, l.limit))
		case relative < 1-below:
			few = append(few, fmt.Errorf("%s: %s: %.0f bit/s, limit %d: %w", what, l.name, rate, l.limit, errFew))
		}
	}
	if len(more) > 0 {
		return errors.Join(more...)
	}
	return errors.Join(few...)
}

// flowing waits until the received rates reach the limits: the switch has cached the flows, and queues are full.
func (p *limitedPods) flowing(t *testing.T) {
	t.Helper()
	await(t, "rates at the limits again", func(context.Context) error {
		rates := p.rates(t, time.Second, func() {})
		var errs []error
		for i, l := range p.floods {
			rate := rates[i]
			if rate < float64(l.limit)*(1-below) {
				errs = append(errs, fmt.Errorf("%s: %.0f bit/s, limit %d", l.name, rate, l.limit))
			}
		}
		return errors.Join(errs...)
	})
}

// sleep lets traffic run for the given time.
func sleep(t *testing.T, length time.Duration) {
	t.Helper()
	select {
	case <-time.After(length):
	case <-t.Context().Done():
	}
}

// shaping returns the shapers in the namespace of a node's ports.
func shaping(t *testing.T, n lab.Node) string {
	t.Helper()
	enter := func(argv ...string) string {
		return mustRun(t, append([]string{"nsenter", "--net=" + n.Root("/run/weft/cni/ports")}, argv...))
	}
	var lines []string
	for line := range strings.Lines(enter("tc", "qdisc", "show") + enter("ip", "-o", "link", "show", "type", "ifb")) {
		if !strings.Contains(line, "qdisc noqueue") || strings.Contains(line, "-in:") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return strings.Join(lines, "\n")
}

// A pod's traffic is limited by its annotations, whatever restarts, and other pods are not slowed down.
func TestBandwidth(t *testing.T) {
	c := cluster(t)
	p := newLimitedPods(t, c)
	echo(t, p.plainFar.Netns, p.plainFar.IPs[0])
	ping(t, p.plainNear.Netns, p.plainFar.IPs[0])
	sleep(t, warmUp)
	t.Run("limits", func(t *testing.T) { p.during(t, "without a restart", window(measured), func() {}) })
	t.Run("restarts", func(t *testing.T) { p.restarts(t, c) })
}

// restarts ends agents and a switch, removes limits by hand, adds pods with invalid limits, and deletes all pods.
func (p *limitedPods) restarts(t *testing.T, c *lab.Cluster) {
	t.Helper()
	unlimited, err := traffic.NewLoad([]traffic.Pair{{Name: "unlimited", From: p.plainNear.Netns, To: addrPort(p.plainFar)}}, min(*pairRate, othersRate))
	if err != nil {
		t.Fatal(err)
	}
	p.during(t, "while agents are restarted", window(again), func() {
		for _, node := range []string{"n1", "n2"} {
			kill(t, c, node+"/weft-agent", syscall.SIGKILL)
		}
		await(t, "both agents ready", func(ctx context.Context) error { return errors.Join(ready(ctx, c.Node(1)), ready(ctx, c.Node(2))) })
	})
	if tallies, err := unlimited.Stop(); err != nil {
		t.Errorf("pods without limits: %v: %v", tallies, err)
	}
	kill(t, c, "n1/ovs-vswitchd", syscall.SIGKILL)
	ping(t, p.plainNear.Netns, p.plainFar.IPs[0])
	p.flowing(t)
	p.during(t, "after the switch was restarted", window(again), func() {})
	byHand(t, c.Node(1), p)
	wrongLimits(t, c.Node(1))
	for _, pod := range []*lab.Pod{p.near, p.far} {
		if _, err := pod.Detach(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range c.Nodes() {
		await(t, "no shaping left on "+n.Name, func(context.Context) error {
			if now := shaping(t, n) + mustRun(t, n.Enter("sh", "-c", "ls /var/lib/weft/attachments-extra")); now != "" {
				return errors.New(now)
			}
			return nil
		})
	}
}

// byHand removes a pod's limits while the agent hangs. The next agent restores them.
func byHand(t *testing.T, n lab.Node, p *limitedPods) {
	t.Helper()
	want := shaping(t, n)
	_, name, err := probe.HostEnd(p.near)
	if err != nil {
		t.Fatal(err)
	}
	for _, argv := range [][]string{{"tc", "qdisc", "del", "dev", name, "root"}, {"tc", "qdisc", "del", "dev", name, "ingress"}} {
		mustRun(t, append([]string{"nsenter", "--net=" + n.Root("/run/weft/cni/ports")}, argv...))
	}
	if now := shaping(t, n); now == want {
		t.Fatalf("no shaping was removed: %s", now)
	}
	kill(t, cluster(t), n.Name+"/weft-agent", syscall.SIGTERM)
	await(t, "the limits restored", func(context.Context) error {
		if now := shaping(t, n); now != want {
			return fmt.Errorf("shaping is %s, was %s", now, want)
		}
		return nil
	})
}

// wrongLimits adds pods with limits out of range.
func wrongLimits(t *testing.T, n lab.Node) {
	t.Helper()
	pod, err := n.Attach(t.Context(), lab.PodSpec{Namespace: "default", Name: "bw-wrong", Capabilities: limits{999, 0}.capabilities()}, "")
	var failure *podruntime.Failure
	if !asFailure(err, &failure) || !strings.Contains(err.Error(), "kubernetes.io/ingress-bandwidth: 999: it is from 1k") {
		t.Errorf("a limit below the minimum: %v", err)
	}
	delPod(t, pod)
}
