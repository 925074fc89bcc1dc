//go:build real

package ovs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"weft.dev/weft/internal/neutron/plug"
	"weft.dev/weft/internal/openflow/ovstest"
)

const (
	portID = "0a1b2c3d-4e5f-4000-8000-000000000001"
	alike  = "0a1b2c3d-4eff-4000-8000-000000000002" // begins with the same 11 characters
)

func testPod(t *testing.T, id string, space ns.NetNS) plug.Pod {
	t.Helper()
	mac, err := net.ParseMAC("fa:16:3e:00:00:05")
	if err != nil {
		t.Fatal(err)
	}
	return plug.Pod{Name: "web", Namespace: "red", NetNS: fmt.Sprintf("/proc/self/fd/%d", space.Fd()), Port: plug.Port{
		ID: id, MAC: mac, Addrs: []netip.Prefix{netip.MustParsePrefix("10.0.0.5/24")}, Gateway: netip.MustParseAddr("10.0.0.1"), MTU: 1442,
	}}
}

// enter runs the rest of a test in a network namespace.
func enter(t *testing.T, space ns.NetNS) {
	t.Helper()
	runtime.LockOSThread() // never unlocked: the thread ends with the test
	h, err := netns.GetFromPath(fmt.Sprintf("/proc/self/fd/%d", space.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = h.Close() }()
	if err := netns.Set(h); err != nil {
		t.Fatal(err)
	}
}

func links(t *testing.T) map[string]netlink.Link {
	t.Helper()
	list, err := netlink.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]netlink.Link{}
	for _, l := range list {
		out[l.Attrs().Name] = l
	}
	return out
}

func setting(t *testing.T, path string) string {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(raw))
}

// A sandbox in the host's network namespace is refused, and the host's eth0 stays. A teardown that cannot read Open vSwitch's database fails:
// its caller would forget the devices otherwise.
func TestNothingOfTheHost(t *testing.T) {
	s := ovstest.Start(t)
	bridge := s.Name("i")
	s.AddBridge(bridge)
	enter(t, s.NetNS)
	p, err := Open(t.Context(), "unix:"+s.DBSock, bridge)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: podInterface}}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Setup(t.Context(), testPod(t, portID, s.NetNS)); !errors.Is(err, errHost) {
		t.Errorf("a sandbox without a network namespace of its own: %v", err)
	}
	if have := links(t); have[podInterface] == nil || have["qbr0a1b2c3d-4e"] != nil {
		t.Errorf("devices: %v", slices.Sorted(maps.Keys(have)))
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := p.Teardown(ended, portID); err == nil {
		t.Error("a teardown that has read nothing succeeds")
	}
}

// The chain on a real switch: Nova's settings, for a pod without an interface and for one whose runtime created an eth0; a second Setup
// changes nothing; after the teardown nothing is left.
func TestChain(t *testing.T) {
	s := ovstest.Start(t)
	bridge := s.Name("i")
	s.AddBridge(bridge)
	enter(t, s.NetNS)
	p, err := Open(t.Context(), "unix:"+s.DBSock, bridge)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for _, had := range []bool{false, true} {
		space := ovstest.NewNetNS(t)
		if had {
			if err := space.Do(func(ns.NetNS) error {
				return netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: podInterface}})
			}); err != nil {
				t.Fatal(err)
			}
		}
		pod := testPod(t, portID, space)
		broken := pod
		broken.NetNS = "/proc/self/fd/none"
		if made, err := p.Setup(t.Context(), broken); err == nil || made || links(t)["qvo0a1b2c3d-4e"] != nil {
			t.Errorf("a first Setup that fails: %t, %v, devices %v", made, err, slices.Sorted(maps.Keys(links(t))))
		}
		for _, first := range []bool{true, false} {
			if made, err := p.Setup(t.Context(), pod); err != nil || made != first {
				t.Fatalf("connected by this call: %t, want %t: %v", made, first, err)
			}
		}
		// A repeated Setup that fails leaves the pod connected.
		if made, err := p.Setup(t.Context(), broken); err == nil || made {
			t.Errorf("a repeated Setup that fails: %t, %v", made, err)
		}
		have := links(t)
		for _, name := range []string{"tap0a1b2c3d-4e", "qbr0a1b2c3d-4e", "qvb0a1b2c3d-4e", "qvo0a1b2c3d-4e"} {
			if have[name] == nil {
				t.Fatalf("%s is missing: %v", name, have)
			}
			if have[name].Attrs().MTU != 1442 {
				t.Errorf("%s has MTU %d", name, have[name].Attrs().MTU)
			}
			if got := setting(t, "/proc/sys/net/ipv6/conf/"+name+"/disable_ipv6"); got != "1" {
				t.Errorf("the host has IPv6 on %s", name)
			}
		}
		br, ok := have["qbr0a1b2c3d-4e"].(*netlink.Bridge)
		if !ok || *br.AgeingTime != 0 || *br.MulticastSnooping {
			t.Errorf("the bridge has settings %+v", br)
		}
		if got := s.VSCtl("get", "Interface", "qvo0a1b2c3d-4e", "external_ids:iface-id", "external_ids:attached-mac", "external_ids:vm-id", "external_ids:iface-status"); got !=
			"\""+portID+"\"\n\"fa:16:3e:00:00:05\"\nweb_red\nactive\n" {
			t.Errorf("the row says %q", got)
		}
		err := space.Do(func(ns.NetNS) error {
			eth0, err := netlink.LinkByName(podInterface)
			if err != nil {
				return err
			}
			addrs, err := netlink.AddrList(eth0, netlink.FAMILY_V4)
			if err != nil || len(addrs) != 1 || addrs[0].IPNet.String() != "10.0.0.5/24" || eth0.Attrs().HardwareAddr.String() != "fa:16:3e:00:00:05" {
				t.Errorf("the pod has %v %v %v", addrs, eth0.Attrs(), err)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		// Another port whose id begins with the same characters is refused, and disturbs nothing.
		if _, err := p.Setup(t.Context(), testPod(t, alike, space)); err == nil || !strings.Contains(err.Error(), portID) {
			t.Errorf("a port with the same device names: %v", err)
		}
		if err := p.Teardown(t.Context(), alike); err != nil || links(t)["qvo0a1b2c3d-4e"] == nil {
			t.Errorf("the teardown of another port: %v", err)
		}
		for range 2 {
			if err := p.Teardown(t.Context(), portID); err != nil {
				t.Fatal(err)
			}
		}
		for name := range links(t) {
			if strings.Contains(name, "0a1b2c3d") {
				t.Errorf("%s is left", name)
			}
		}
		if rest := s.VSCtl("list-ports", bridge); rest != "" {
			t.Errorf("ports left: %s", rest)
		}
	}
}
