//go:build real

package node_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/attach/lifecycle"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/flannel/node"
	"weft.dev/weft/internal/placement"
	"weft.dev/weft/internal/testwait"
)

// serve runs an agent's handler on a stage until the test ends.
func serve(t *testing.T, s *stage) *lifecycle.Handler {
	t.Helper()
	h, _ := serveUntil(t, s)
	return h
}

// serveUntil runs an agent's handler on a stage until stop is called, at most until the test ends.
func serveUntil(t *testing.T, s *stage) (h *lifecycle.Handler, stop func()) {
	t.Helper()
	store, err := attach.Open(filepath.Join(s.dir, "attachments"))
	if err != nil {
		t.Fatal(err)
	}
	h = lifecycle.New(store, lifecycle.Options{
		BootID: s.boot, Default: func() (string, error) { return node.Name, nil }, Waiting: func() string { return "the test" },
		Place: func(context.Context, *cni.Request) (placement.Decision, error) {
			return placement.Decision{Network: node.Name, Annotations: s.annotations}, nil
		},
	})
	ctx, cancel := context.WithCancel(context.Background())
	made, runner := s.start(ctx, t, h.Records(node.Name))
	leave := h.Serve(node.Name, made, runner.HandedOver())
	done := make(chan error, 2)
	go func() { done <- h.Run(ctx) }()
	go func() { done <- runner.Run(ctx) }()
	testwait.Eventually(t, "the network is ready", made.Ready)
	stop = sync.OnceFunc(func() {
		cancel()
		for range 2 {
			if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		}
		leave()
		_ = store.Close()
	})
	t.Cleanup(stop)
	return h, stop
}

func add(t *testing.T, h *lifecycle.Handler, name string, pod ns.NetNS, ips ...string) (*types100.Result, error) {
	t.Helper()
	return addWith(t, h, name, pod, cni.RuntimeConfig{IPs: ips})
}

// addWith adds a pod with what the runtime passes by capabilities.
func addWith(t *testing.T, h *lifecycle.Handler, name string, pod ns.NetNS, passed cni.RuntimeConfig) (*types100.Result, error) {
	t.Helper()
	return h.Add(t.Context(), &cni.Request{
		Command: cni.CommandAdd, ContainerID: name, IfName: "eth0", Netns: pod.Path(), Args: cni.Args{PodNamespace: "default", PodName: name},
		NetConf: &cni.NetConf{RuntimeConfig: passed},
	})
}

// TestPortChecks: at its port a pod can send only with its own MAC and addresses, also in ARP and neighbour discovery.
func TestPortChecks(t *testing.T) {
	s := newStage(t)
	h := serve(t, s)
	pod, other := space(t), space(t)
	for name, at := range map[string]ns.NetNS{"pod": pod, "other": other} {
		if _, err := add(t, h, name, at); err != nil {
			t.Fatal(err)
		}
	}
	gateways := s.state.Subnets
	own := func(when string, want bool) {
		t.Helper()
		for _, subnet := range gateways {
			gw := subnet.Addr().Next()
			err := reaches(t, pod.Path(), gw, want)
			if (err == nil) != want {
				t.Errorf("%s: the pod reaches %s: %v, want %t", when, gw, err, want)
			}
		}
	}
	own("at first", true)
	inPod := func(do func(eth netlink.Link) error) {
		t.Helper()
		err := pod.Do(func(ns.NetNS) error {
			eth, err := netlink.LinkByName("eth0")
			if err != nil {
				return err
			}
			return do(eth)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	var mac net.HardwareAddr
	inPod(func(eth netlink.Link) error {
		mac = eth.Attrs().HardwareAddr
		return netlink.LinkSetHardwareAddr(eth, net.HardwareAddr{2, 0, 0, 0, 0, 9})
	})
	own("with another MAC", false)
	inPod(func(eth netlink.Link) error { return netlink.LinkSetHardwareAddr(eth, mac) })
	own("with its MAC again", true)
	// An unused address of the subnet: the node answers ARP requests from it only if the port passes them.
	inPod(func(eth netlink.Link) error {
		stolen, err := netlink.ParseAddr("10.244.3.200/24")
		return errors.Join(err, netlink.AddrAdd(eth, stolen))
	})
	err := pod.Do(func(ns.NetNS) error {
		from := net.Dialer{Timeout: 2 * time.Second, LocalAddr: &net.TCPAddr{IP: net.IPv4(10, 244, 3, 200)}}
		conn, err := from.DialContext(t.Context(), "tcp", fmt.Sprintf("10.244.3.1:%d", listenPort))
		if err == nil {
			_ = conn.Close()
			return errors.New("the node answers a pod with an address that is not its own")
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestAddressesAskedFor: capability ips gives a pod the address that it requests, once, and addresses in host-local's files are not
// available.
func TestAddressesAskedFor(t *testing.T) {
	s := newStage(t)
	h := serve(t, s)
	result, err := add(t, h, "asks", space(t), "10.244.3.77/24")
	if err != nil {
		t.Fatal(err)
	}
	if got := result.IPs[0].Address.String(); got != "10.244.3.77/24" {
		t.Errorf("the pod has %s", got)
	}
	for text, code := range map[string]cni.Code{
		"10.244.3.77": cni.CodeTryAgainLater, "10.244.4.1": cni.CodeUnsupportedField, "10.244.3.1": cni.CodeUnsupportedField, "x": cni.CodeUnsupportedField,
	} {
		_, err := add(t, h, "refused", space(t), text)
		if failure := cni.AsError(err); failure == nil || failure.Code != code {
			t.Errorf("ips %q: %v, want code %d", text, err, code)
		}
	}
}

// TestInterfaceGone: an agent starts on a node where a pod has removed its own interface, serves the other pods, and CHECK reports that
// one.
func TestInterfaceGone(t *testing.T) {
	s := newStage(t)
	h, stop := serveUntil(t, s)
	pod, other := space(t), space(t)
	for name, at := range map[string]ns.NetNS{"pod": pod, "other": other} {
		if _, err := add(t, h, name, at); err != nil {
			t.Fatal(err)
		}
	}
	stop()
	err := pod.Do(func(ns.NetNS) error {
		eth, err := netlink.LinkByName("eth0")
		return errors.Join(err, netlink.LinkDel(eth))
	})
	if err != nil {
		t.Fatal(err)
	}
	h = serve(t, s)
	if err := reaches(t, other.Path(), s.state.Subnets[0].Addr().Next(), true); err != nil {
		t.Errorf("the other pod: %v", err)
	}
	if _, err := add(t, h, "new", space(t)); err != nil {
		t.Errorf("a new pod: %v", err)
	}
	check := &cni.Request{Command: cni.CommandCheck, ContainerID: "pod", IfName: "eth0", Netns: pod.Path(), NetConf: &cni.NetConf{}}
	if err := h.Check(t.Context(), check); err == nil {
		t.Error("CHECK finds nothing wrong with the pod that has no interface")
	}
}

// TestBridgeIsFull: a pod that the bridge has no port for is refused, and the error names the limit. The next pod gets the port of one that ends.
func TestBridgeIsFull(t *testing.T) {
	s := newStage(t)
	h := serve(t, s)
	if _, err := add(t, h, "last", space(t)); err != nil {
		t.Fatal(err)
	}
	const most = 1023 // the kernel's ports of a bridge (BR_MAX_PORTS of net/bridge/br_private.h, without number 0)
	var lines strings.Builder
	for i := range (most - 1) / 2 {
		fmt.Fprintf(&lines, "link add a%d type veth peer name b%d\nlink set a%d master cni0\nlink set b%d master cni0\n", i, i, i, i)
	}
	if err := s.space.Do(func(ns.NetNS) error {
		cmd := exec.Command("ip", "-batch", "-")
		cmd.Stdin = strings.NewReader(lines.String())
		out, err := cmd.CombinedOutput()
		if err != nil {
			err = fmt.Errorf("ip: %w: %s", err, out)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	pod := space(t)
	if _, err := add(t, h, "one-more", pod); err == nil || !strings.Contains(err.Error(), "bridge cni0 is full: the kernel's bridges have 1,023 ports") {
		t.Errorf("one pod more: %v", err)
	}
	if files, err := filepath.Glob(filepath.Join(s.dir, "networks", "cbr0", "10.*")); len(files) != 1 || err != nil {
		t.Errorf("addresses in use, with that of the refused pod: %v, %v", files, err)
	}
	if recs := h.Records(node.Name).Attached(); len(recs) != 1 || recs[0].ContainerID != "last" {
		t.Errorf("attached: %+v", recs)
	}
	del(t, h, "last")
	testwait.Eventually(t, "the next pod gets the port", func() error {
		_, err := add(t, h, "one-more", pod)
		return err
	})
}

// TestNewSubnet: with another podCIDR the bridge gets the new gateway's address, and keeps the former one while pods of the former subnet
// run; an address that something else left on the bridge goes.
func TestNewSubnet(t *testing.T) {
	s := newStage(t)
	if err := s.space.Do(func(ns.NetNS) error {
		stale, err := netlink.ParseAddr("10.244.99.1/24")
		bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "cni0"}}
		return errors.Join(err, netlink.LinkAdd(bridge), netlink.AddrAdd(bridge, stale))
	}); err != nil {
		t.Fatal(err)
	}
	h, stop := serveUntil(t, s)
	before := space(t)
	if _, err := add(t, h, "before", before); err != nil {
		t.Fatal(err)
	}
	onBridge(t, s, map[string]bool{"10.244.99.1": false, "10.244.3.1": true})
	stop()
	former := s.state.Subnets[0]
	s.state.Subnets[0] = netip.MustParsePrefix("10.244.7.0/24")
	h = serve(t, s)
	after := space(t)
	result, err := add(t, h, "after", after)
	if err != nil {
		t.Fatal(err)
	}
	if address, _ := netip.AddrFromSlice(result.IPs[0].Address.IP); !s.state.Subnets[0].Contains(address.Unmap()) {
		t.Errorf("a new pod has %s, which is not in %s", address, s.state.Subnets[0])
	}
	onBridge(t, s, map[string]bool{"10.244.3.1": true, "10.244.7.1": true})
	for pod, subnet := range map[ns.NetNS]netip.Prefix{before: former, after: s.state.Subnets[0]} {
		if err := reaches(t, pod.Path(), subnet.Addr().Next(), true); err != nil {
			t.Errorf("a pod of %s and its gateway: %v", subnet, err)
		}
	}
}

// onBridge waits until the bridge has, or does not have, addresses.
func onBridge(t *testing.T, s *stage, want map[string]bool) {
	t.Helper()
	testwait.Eventually(t, "the addresses of the bridge", func() error {
		have := map[string]bool{}
		err := s.space.Do(func(ns.NetNS) error {
			bridge, err := netlink.LinkByName("cni0")
			if err != nil {
				return err
			}
			addresses, err := netlink.AddrList(bridge, netlink.FAMILY_V4)
			for _, address := range addresses {
				have[address.IP.String()] = true
			}
			return err
		})
		for address, wanted := range want {
			if have[address] != wanted {
				err = errors.Join(err, fmt.Errorf("%s: %t, want %t", address, have[address], wanted))
			}
		}
		return err
	})
}
