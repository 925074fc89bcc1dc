package pipeline_test

import (
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"weft.dev/weft/internal/goldentest"
	"weft.dev/weft/internal/neutron/pipeline"
	"weft.dev/weft/internal/openflow"
)

func pod(number uint32) *pipeline.Pod {
	return &pipeline.Pod{
		Owner: "attachment/c1/eth0", OFPort: 2*number + 11, Patch: 2*number + 10, Zone: uint16(57344 + number), //nolint:gosec // small
		MAC: net.HardwareAddr{0x0a, 0x58, 10, 244, 0, 5}, Addresses: []netip.Addr{netip.MustParseAddr("10.244.0.5"), netip.MustParseAddr("fd00::5")},
	}
}

func TestGolden(t *testing.T) {
	isolated := pod(4)
	isolated.Tracked, isolated.Network = true, 0x1122334455667788
	isolated.Egress = &pipeline.Allowed{}
	isolated.Ingress = &pipeline.Allowed{Rules: []pipeline.Allow{
		{Peers: []netip.Prefix{netip.MustParsePrefix("10.244.0.9/32"), netip.MustParsePrefix("fd00::/64")}, Ports: []pipeline.Port{{Protocol: 6, Number: 8080, Mask: 0xffff}, {Protocol: 17}}},
		{AnyPeer: true, Ports: []pipeline.Port{{Protocol: 132, Number: 64, Mask: 0xffc0}}},
	}}
	published := pod(5)
	published.Published = []pipeline.Port{{Protocol: 6, Number: 8080}, {Protocol: 17, Number: 53}}
	judged := pod(6)
	judged.Published = []pipeline.Port{{Protocol: 6, Number: 8080}, {Protocol: 17, Number: 53}, {Protocol: 17, Number: 54}, {Protocol: 132, Number: 70}}
	judged.Tracked = true
	judged.Ingress = &pipeline.Allowed{Rules: []pipeline.Allow{
		{Peers: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}, AnyPort: true},
		{Peers: []netip.Prefix{netip.MustParsePrefix("169.254.0.2/32")}, Ports: []pipeline.Port{{Protocol: 17, Number: 54, Mask: 0xffff}, {Protocol: 6, Number: 8081, Mask: 0xffff}}},
		{AnyPeer: true, Ports: []pipeline.Port{{Protocol: 132, Number: 64, Mask: 0xffc0}}},
	}}
	for name, rules := range map[string][]openflow.Rule{
		"published": pipeline.PodRules(published), "judged": pipeline.PodRules(judged),
		"static": pipeline.Static(), "pod": pipeline.PodRules(pod(3)), "isolated": pipeline.PodRules(isolated),
	} {
		t.Run(name, func(t *testing.T) {
			var text strings.Builder
			for _, r := range rules {
				if err := r.Flow.Match.Validate(); err != nil {
					t.Errorf("%s: %v", r.Flow, err)
				}
				fmt.Fprintf(&text, "# %s\n%s\n", r.Purpose, r.Flow)
			}
			golden(t, name, text.String())
			if len(openflow.Fragment(rules)) != len(rules) {
				t.Error("two flows have the same table, priority and match")
			}
		})
	}
}

// Flows of two pods never have the same key, also with equal addresses, except those by which the host reaches the address.
func TestPodsShareNoFlow(t *testing.T) {
	one, two := pod(3), pod(4)
	shared := 0
	for key := range openflow.Fragment(pipeline.PodRules(one)) {
		if _, both := openflow.Fragment(pipeline.PodRules(two))[key]; both {
			shared++
			if key.Table != pipeline.TableFromHost {
				t.Errorf("shared: %s", key)
			}
		}
	}
	if shared != 2 {
		t.Errorf("%d flows are shared, want the two from the host", shared)
	}
}

func TestServiceGolden(t *testing.T) {
	service := pipeline.Service{
		Group: 7, Address: netip.MustParseAddr("10.96.0.9"), Port: pipeline.Port{Protocol: 6, Number: 80}, Sticky: true,
		Endpoints: []pipeline.Endpoint{
			{Addr: netip.MustParseAddrPort("10.244.0.5:8080"), MAC: net.HardwareAddr{0x0a, 0x58, 10, 244, 0, 5}},
			{Addr: netip.MustParseAddrPort("192.0.2.5:8080"), MAC: net.HardwareAddr{0xfa, 0x16, 0x3e, 0, 0, 1}},
		},
	}
	empty := service
	empty.Address, empty.Endpoints = netip.MustParseAddr("10.96.0.11"), nil
	var lines []string
	for _, entries := range []map[openflow.Key]openflow.Entry{
		pipeline.ServiceEntries("neutron/network/blue/blue", 0x1122334455667788, []pipeline.Service{service, empty}),
		pipeline.HostServiceEntries("neutron/host", []pipeline.HostService{{Address: netip.MustParseAddr("10.96.0.10"), Port: pipeline.Port{Protocol: 17, Number: 53}}}),
	} {
		for _, e := range entries {
			lines = append(lines, e.String())
		}
	}
	slices.Sort(lines)
	golden(t, "services", strings.Join(lines, "\n")+"\n")
}

// A Service with more endpoints than fit into the message of its group is served by some of them: its group would keep all other Services of
// the network out of the switch.
func TestManyEndpoints(t *testing.T) {
	service := pipeline.Service{Group: 7, Address: netip.MustParseAddr("10.96.0.9"), Port: pipeline.Port{Protocol: 6, Number: 80}, Sticky: true}
	for i := range 2000 {
		addr := netip.AddrFrom4([4]byte{10, 244, byte(i >> 8), byte(i)})
		service.Endpoints = append(service.Endpoints, pipeline.Endpoint{Addr: netip.AddrPortFrom(addr, 8080), MAC: net.HardwareAddr{0x0a, 0x58, 10, 244, 0, 5}})
	}
	groups := 0
	for _, e := range pipeline.ServiceEntries("neutron/network/blue/blue", 1, []pipeline.Service{service}) {
		group, is := e.(*openflow.Group)
		if !is {
			continue
		}
		groups++
		if err := group.Validate(); err != nil || len(group.Buckets) < 500 {
			t.Errorf("a group of %d endpoints: %v", len(group.Buckets), err)
		}
	}
	if groups != 1 {
		t.Errorf("%d groups", groups)
	}
}

func golden(t *testing.T, name, text string) {
	t.Helper()
	path := filepath.Join("testdata", name+".golden")
	goldentest.Compare(t, path, text)
}
