//go:build real

package podveth

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/link/devconf"
	"weft.dev/weft/internal/link/netns"
	"weft.dev/weft/internal/link/nstest"
	"weft.dev/weft/internal/link/podlink"
	"weft.dev/weft/internal/link/rtnetlink"
)

func newPods(t testing.TB) (pods *Pods, home string) {
	t.Helper()
	home = nstest.New(t)
	nstest.Do(t, home, func() (err error) {
		pods, err = New()
		return err
	})
	t.Cleanup(pods.Close)
	return pods, home
}

func testPair(netns string, n int) podlink.Pair {
	address := netip.AddrFrom4([4]byte{10, 128, byte(n >> 8), byte(n)})
	gateway := netip.MustParseAddr("10.128.0.1")
	return podlink.Pair{
		HostName: fmt.Sprintf("wt%d", n), PodName: "eth0", Netns: netns, Owner: fmt.Sprintf("attachment/%d/eth0", n),
		MTU: 1450, PodMAC: append(net.HardwareAddr{0x0a, 0x58}, address.AsSlice()...), HostGroup: 77, TxOffloadOff: true,
		PodAddresses: []netip.Prefix{netip.PrefixFrom(address, 14)},
		PodRoutes: []link.Route{
			{Dst: netip.MustParsePrefix("172.30.0.0/16"), Gateway: gateway, MTU: 1400},
			{Dst: netip.MustParsePrefix("0.0.0.0/0"), Gateway: gateway},
		},
	}
}

func TestPodsRealLifecycle(t *testing.T) {
	pods, _ := newPods(t)
	ctx := context.Background()
	pair := testPair(nstest.New(t), 2)
	before := newLinkSettings(t, pair.Netns)
	if err := pods.Check(ctx, pair); err == nil {
		t.Fatal("Check found a pair that was not made")
	}
	created, err := pods.Create(ctx, pair)
	if err != nil {
		t.Fatal(err)
	}
	if created.PodMAC.String() != pair.PodMAC.String() || created.HostIndex == 0 || created.PodIndex == 0 {
		t.Fatalf("created %+v", created)
	}
	if err := pods.Check(ctx, pair); err != nil {
		t.Fatal(err)
	}
	if after := newLinkSettings(t, pair.Netns); after != before {
		t.Errorf("links that others make in the pod begin with %s, not with %s", after, before)
	}
	again, err := pods.Create(ctx, pair)
	if err != nil || again.HostIndex != created.HostIndex {
		t.Fatalf("second Create: %+v, %v", again, err)
	}
	if err := pods.Check(ctx, pair); err != nil {
		t.Fatal(err)
	}
	checkOffloads(t, pair.Netns, pair.PodName)
	if list, err := pods.List(ctx); err != nil || list[pair.HostName] != pair.Owner || len(list) != 1 {
		t.Fatalf("List: %v, %v", list, err)
	}
	for range 2 {
		if err := pods.Delete(ctx, pair.HostName, "wtnever", "a/b"); err != nil {
			t.Fatal(err)
		}
	}
	if list, err := pods.List(ctx); err != nil || len(list) != 0 {
		t.Fatalf("List after Delete: %v, %v", list, err)
	}
}

// newLinkSettings returns the initial settings of new links in a namespace, as far as Weft sets them.
func newLinkSettings(t *testing.T, netns string) (settings string) {
	t.Helper()
	nstest.Do(t, netns, func() error {
		for _, name := range []string{"disable_ipv6", "accept_ra"} {
			text, err := os.ReadFile("/proc/sys/net/ipv6/conf/default/" + name)
			if err != nil {
				return err
			}
			settings += name + " " + strings.TrimSpace(string(text)) + " "
		}
		return nil
	})
	return settings
}

// checkOffloads reads the offloads with ethtool(8), which uses the kernel's other interface (netlink).
func checkOffloads(t *testing.T, netns, device string) {
	t.Helper()
	nstest.Do(t, netns, func() error {
		out, err := exec.Command("ethtool", "-k", device).CombinedOutput()
		if err != nil {
			return fmt.Errorf("ethtool: %w: %s", err, out)
		}
		for line := range strings.Lines(string(out)) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
			if devconf.IsTxOffload(name) && strings.HasPrefix(value, "on") && !strings.Contains(value, "fixed") {
				return fmt.Errorf("%s of %s is %s", name, device, value)
			}
		}
		return nil
	})
}

// alterations are changes of a pair by another program, and what Check reports for them.
var alterations = []struct {
	name, want string
	inPod      bool
	do         func(pair podlink.Pair) error
}{
	{"host down", "up is false", false, func(p podlink.Pair) error {
		return withLink(p.HostName, netlink.LinkSetDown)
	}},
	{"host group", "group is 5", false, func(p podlink.Pair) error {
		return withLink(p.HostName, func(l netlink.Link) error { return netlink.LinkSetGroup(l, 5) })
	}},
	{"pod offload", "tx offload is on", true, func(p podlink.Pair) error { return devconf.SetTxOffload(p.PodName, link.On) }},
	{"host ipv6", "disable_ipv6 is off", false, func(p podlink.Pair) error {
		return devconf.WriteSysctls(p.HostName, link.Sysctls{DisableIPv6: link.Off})
	}},
	{"pod mtu", "mtu is 1300", true, func(p podlink.Pair) error {
		return withLink(p.PodName, func(l netlink.Link) error { return netlink.LinkSetMTU(l, 1300) })
	}},
	{"pod MAC", "MAC is 0a:00:00:00:00:01", true, func(p podlink.Pair) error {
		return withLink(p.PodName, func(l netlink.Link) error {
			return netlink.LinkSetHardwareAddr(l, net.HardwareAddr{10, 0, 0, 0, 0, 1})
		})
	}},
	{"pod route gone", "does not exist", true, func(p podlink.Pair) error {
		return netlink.RouteDel(&netlink.Route{Dst: &net.IPNet{IP: net.IPv4(172, 30, 0, 0), Mask: net.CIDRMask(16, 32)}})
	}},
	{"pod address added", "addresses is", true, func(p podlink.Pair) error {
		return withLink(p.PodName, func(l netlink.Link) error {
			address, _ := netlink.ParseAddr("192.0.2.1/24")
			return netlink.AddrAdd(l, address)
		})
	}},
	{"pod end gone", "does not exist", true, func(p podlink.Pair) error { return withLink(p.PodName, netlink.LinkDel) }},
}

func withLink(name string, do func(netlink.Link) error) error {
	dev, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	return do(dev)
}

func TestPodsRealCheckAndRepair(t *testing.T) {
	pods, home := newPods(t)
	ctx := context.Background()
	pair := testPair(nstest.New(t), 3)
	if _, err := pods.Create(ctx, pair); err != nil {
		t.Fatal(err)
	}
	for _, alteration := range alterations {
		t.Run(alteration.name, func(t *testing.T) {
			where := home
			if alteration.inPod {
				where = pair.Netns
			}
			nstest.Do(t, where, func() error { return alteration.do(pair) })
			err := pods.Check(ctx, pair)
			var difference *podlink.Difference
			if !errors.As(err, &difference) || !strings.Contains(err.Error(), alteration.want) {
				t.Fatalf("Check says %v, want %q", err, alteration.want)
			}
			if _, err := pods.Create(ctx, pair); err != nil {
				t.Fatalf("Create after: %v", err)
			}
			if err := pods.Check(ctx, pair); err != nil {
				t.Fatalf("Check after Create: %v", err)
			}
		})
	}
}

func TestPodsRealForeign(t *testing.T) {
	pods, home := newPods(t)
	ctx := context.Background()
	bridge := func(name string) func() error {
		return func() error {
			return netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name, TxQLen: -1}})
		}
	}
	inPod, onHost := testPair(nstest.New(t), 4), testPair(nstest.New(t), 5)
	nstest.Do(t, inPod.Netns, bridge("eth0"))
	nstest.Do(t, home, bridge(onHost.HostName))
	for _, pair := range []podlink.Pair{inPod, onHost} {
		_, err := pods.Create(ctx, pair)
		if !errors.Is(err, link.ErrForeign) || !strings.Contains(err.Error(), "bridge") {
			t.Errorf("Create over a foreign link: %v", err)
		}
	}
	if err := pods.Delete(ctx, onHost.HostName); !errors.Is(err, link.ErrForeign) {
		t.Errorf("Delete of a foreign link: %v", err)
	}
	if list, err := pods.List(ctx); err != nil || len(list) != 0 {
		t.Errorf("leftovers: %v, %v", list, err)
	}
}

// A pair left by a Create that was interrupted, at any point, is completed; one left in an earlier sandbox is replaced.
func TestPodsRealInterrupted(t *testing.T) {
	pods, home := newPods(t)
	ctx := context.Background()
	pair := testPair(nstest.New(t), 6)
	nstest.Do(t, home, func() error {
		pod, err := netns.Open(pair.Netns)
		if err != nil {
			return err
		}
		defer pod.Close()
		answers, err := pods.conn.Do(rtnetlink.NewVeth(rtnetlink.LinkEnd{Name: pair.HostName, Group: 77, Netns: -1},
			rtnetlink.LinkEnd{Name: pair.PodName, Netns: int(pod.File.Fd())}))
		return errors.Join(err, answers[0].Err)
	})
	if _, err := pods.Create(ctx, pair); err != nil {
		t.Fatal(err)
	}
	if err := pods.Check(ctx, pair); err != nil {
		t.Fatal(err)
	}
	later := pair
	later.Netns = nstest.New(t)
	if _, err := pods.Create(ctx, later); err != nil {
		t.Fatal(err)
	}
	if err := pods.Check(ctx, later); err != nil {
		t.Fatal(err)
	}
}

func TestPodsRealIPv6(t *testing.T) {
	pods, _ := newPods(t)
	ctx := context.Background()
	pair := testPair(nstest.New(t), 7)
	pair.PodAddresses = append(pair.PodAddresses, netip.MustParsePrefix("fd00:10::7/64"))
	pair.PodRoutes = append(pair.PodRoutes,
		link.Route{Dst: netip.MustParsePrefix("::/0"), Gateway: netip.MustParseAddr("fd00:10::1")},
		link.Route{Dst: netip.MustParsePrefix("fd00:20::/64"), Gateway: netip.MustParseAddr("fd00:99::1"), OnLink: true, MTU: 1400})
	for range 2 {
		if _, err := pods.Create(ctx, pair); err != nil {
			t.Fatal(err)
		}
		if err := pods.Check(ctx, pair); err != nil {
			t.Fatal(err)
		}
	}
}

// Two interfaces of one pod leave each other's routes alone, also when one is created again.
func TestPodsRealTwoInterfaces(t *testing.T) {
	pods, _ := newPods(t)
	ctx := context.Background()
	first := testPair(nstest.New(t), 8)
	second := testPair(first.Netns, 9)
	second.PodName, second.PodAddresses = "net1", []netip.Prefix{netip.MustParsePrefix("192.0.2.9/24")}
	second.PodRoutes = []link.Route{{Dst: netip.MustParsePrefix("198.51.100.0/24"), Gateway: netip.MustParseAddr("192.0.2.1")}}
	for range 2 {
		for _, pair := range []podlink.Pair{first, second} {
			if _, err := pods.Create(ctx, pair); err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(pods.Check(ctx, first), pods.Check(ctx, second)); err != nil {
			t.Fatal(err)
		}
	}
}

// Pairs are deleted whether their pods' namespaces exist, do not exist, or are being removed.
func TestPodsRealReap(t *testing.T) {
	pods, _ := newPods(t)
	ctx := context.Background()
	var names []string
	for n := range 20 {
		pair := testPair(nstest.New(t), 100+n)
		if _, err := pods.Create(ctx, pair); err != nil {
			t.Fatal(err)
		}
		if n%3 == 0 {
			if err := unix.Unmount(pair.Netns, unix.MNT_DETACH); err != nil {
				t.Fatal(err)
			}
		}
		names = append(names, pair.HostName)
	}
	if err := pods.Delete(ctx, names...); err != nil {
		t.Fatal(err)
	}
	if list, err := pods.List(ctx); err != nil || len(list) != 0 {
		t.Fatalf("left: %v, %v", list, err)
	}
}

func benchmarkPods(b *testing.B, count int) (*Pods, []podlink.Pair) {
	pods, _ := newPods(b)
	pairs := make([]podlink.Pair, count)
	for i := range pairs {
		pairs[i] = testPair(nstest.New(b), i+2)
	}
	return pods, pairs
}

func create(b *testing.B, pods *Pods, pairs []podlink.Pair) (names []string) {
	for _, pair := range pairs {
		if _, err := pods.Create(context.Background(), pair); err != nil {
			b.Fatal(err)
		}
		names = append(names, pair.HostName)
	}
	return names
}

func BenchmarkPodCreate(b *testing.B) {
	pods, pairs := benchmarkPods(b, 50)
	for b.Loop() {
		names := create(b, pods, pairs)
		b.StopTimer()
		if err := pods.Delete(context.Background(), names...); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*len(pairs)), "µs/pair")
}

func BenchmarkPodDelete(b *testing.B) {
	deletes := map[string]func(*Pods, []string) error{
		"single": func(p *Pods, names []string) error {
			for _, name := range names {
				if err := p.Delete(context.Background(), name); err != nil {
					return err
				}
			}
			return nil
		},
		"parallel": func(p *Pods, names []string) error {
			done := make(chan error)
			for _, name := range names {
				go func() { done <- p.Delete(context.Background(), name) }()
			}
			var errs []error
			for range names {
				errs = append(errs, <-done)
			}
			return errors.Join(errs...)
		},
		"group": func(p *Pods, names []string) error { return p.Delete(context.Background(), names...) },
	}
	for name, remove := range deletes {
		b.Run(name, func(b *testing.B) {
			pods, pairs := benchmarkPods(b, 50)
			for b.Loop() {
				b.StopTimer()
				names := create(b, pods, pairs)
				b.StartTimer()
				if err := remove(pods, names); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*len(pairs)), "µs/pair")
		})
	}
}
