//go:build real

package node

import (
	"errors"
	"testing"

	stackubev1 "weft.dev/weft/api/stackube/v1"
	weftv1 "weft.dev/weft/api/weft/v1"
	"weft.dev/weft/internal/ovn/ovntest"
)

// dualNetwork creates a tenant's network with subnets of both families.
func (s *site) dualNetwork(name string) *stackubev1.Network {
	s.t.Helper()
	n := s.network(name)
	s.Nbctl("set", "Logical_Router_Port", name+"-rp", `networks="10.244.0.1/16","fd00:10:244::1/64"`)
	return n
}

// dualPort creates a port with an address of each family; suffix is the end of the IPv6 address.
func (s *site) dualPort(p portOf, suffix string) {
	s.t.Helper()
	n, address := p.network, "fd00:10:244::"+suffix
	both := p.mac() + " " + p.address() + " " + address
	s.Nbctl("lsp-add", n.Name, p.uuid(), "--", "lsp-set-addresses", p.uuid(), both, "--", "lsp-set-port-security", p.uuid(), both)
	object := p.object()
	object.Spec.Addresses = append(object.Spec.Addresses, weftv1.NeutronPortAddress{Address: address + "/64", Gateway: "fd00:10:244::1"})
	p.createObject(s.t, object)
}

// Pods on a network with two subnets have an address and a gateway of each family. Two tenants' pods on one node may have the same IPv6
// address. NetworkPolicies apply to IPv6 as to IPv4: from peers that no policy allows nothing arrives, answers do, and a pod that may send
// nothing sends nothing.
func TestDualStack(t *testing.T) {
	s := newSite(t, 2)
	blue, red := s.dualNetwork("azure"), s.dualNetwork("crimson")
	one, two := s.Chassis[0].Name, s.Chassis[1].Name
	s.dualPort(portOf{blue, one, 5, 1}, "a1")
	s.dualPort(portOf{blue, one, 5, 2}, "a2")
	s.dualPort(portOf{blue, two, 5, 3}, "a3")
	s.dualPort(portOf{red, one, 6, 4}, "a1")
	s.serve()
	pods, six := map[string]*ovntest.Pod{}, map[string]string{}
	for _, p := range []struct {
		network *stackubev1.Network
		name    string
		node    int
	}{{blue, "client", 0}, {blue, "server", 0}, {blue, "far", 1}, {red, "alien", 0}} {
		pod, result := start(t, s.nodes[p.node], p.network.Namespace, p.name, map[string]string{"app": p.name})
		if len(result.IPs) != 2 || result.IPs[1].Gateway.String() != "fd00:10:244::1" {
			t.Fatalf("ADD's answer has the addresses %v", result.IPs)
		}
		pods[p.name], six[p.name] = pod, result.IPs[1].Address.IP.String()
	}
	for _, from := range []string{"client", "server", "far"} {
		reaches(t, pods[from], "fd00:10:244::1")
		for _, to := range []string{"client", "server", "far"} {
			if from != to {
				reaches(t, pods[from], six[to])
			}
		}
	}
	if six["alien"] != "fd00:10:244::a1" {
		t.Errorf("the other tenant's pod has %s", six["alien"])
	}
	for _, name := range []string{"client", "server"} { // one of them has the other tenant's address, and answers itself
		if six[name] != six["alien"] && pods["alien"].Ping(six[name], "") {
			t.Error("a pod reaches another tenant's by IPv6")
		}
	}

	policy := onlyClients(t, blue.Namespace, "server", map[string]string{"app": "server"})
	eventually(t, "a pod that no policy allows reaches an isolated pod no more", func() error {
		if pods["far"].Ping(six["server"], "") {
			return errors.New("it does")
		}
		return nil
	})
	reaches(t, pods["client"], six["server"])
	reaches(t, pods["server"], six["far"]) // answers in its own connections

	silence(t, policy, pods["server"], six["far"])
	reaches(t, pods["client"], six["server"])
}
