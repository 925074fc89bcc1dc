//go:build real

package node_test

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"strings"
	"testing"

	"github.com/containernetworking/plugins/pkg/ns"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/link/podveth"
	"weft.dev/weft/internal/ovn"
	"weft.dev/weft/internal/ovn/ovntest"
	"weft.dev/weft/internal/ovsport"
	"weft.dev/weft/internal/placement"
	"weft.dev/weft/internal/vpc/node"
	"weft.dev/weft/internal/vpc/northbound"
	"weft.dev/weft/internal/vpc/objects"
)

func podRequest(name, netns string) *cni.Request {
	return &cni.Request{
		ContainerID: "sandbox-" + name, IfName: "eth0", Netns: netns, Args: cni.Args{PodNamespace: "ns1", PodName: name, PodUID: "uid-" + name},
	}
}

// given are addresses by "<namespace>/<pod>/<uid>".
type given map[string]node.Address

func (g given) Of(_ context.Context, namespace, pod, uid string) (node.Address, error) {
	if address, there := g[namespace+"/"+pod+"/"+uid]; there {
		return address, nil
	}
	return node.Address{}, errors.New("there is no IP object for this pod")
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Pods of a VPC on two nodes, attached as by an ADD: they reach each other, a check finds changes, and nothing is left.
func TestAttacher(t *testing.T) {
	site := ovntest.NewSite(t, 2)
	subnet := objects.Subnet{
		Meta: objects.Meta{Kind: "Subnet", Name: "s", UID: "s-uid"}, Prefix: netip.MustParsePrefix("10.0.1.0/24"), Gateway: netip.MustParseAddr("10.0.1.1"),
	}
	vpc := objects.VPC{Meta: objects.Meta{Kind: "Vpc", Name: "v", UID: "v-uid"}}
	rows := northbound.Switch(&subnet, vpc.Meta)
	maps.Copy(rows, northbound.Router(&northbound.Network{VPC: vpc, Subnets: []objects.Subnet{subnet}}).Rows)
	addresses := given{}
	for name, text := range map[string]string{"a": "10.0.1.5", "b": "10.0.1.6"} {
		addr := netip.MustParseAddr(text)
		key, row := northbound.SwitchPort(&subnet, northbound.Port{Addr: addr})
		rows[key] = row
		addresses["ns1/"+name+"/uid-"+name] = node.Address{
			Subnet: subnet.Name, SubnetUID: subnet.UID, Prefix: netip.PrefixFrom(addr, 24), Gateway: subnet.Gateway, MAC: northbound.MAC(addr),
			Port: northbound.PortName(subnet.Name, addr),
		}
	}
	engine, err := ovn.Open(t.Context(), ovn.Config{Endpoints: []string{site.NB()}})
	must(t, err)
	t.Cleanup(engine.Close)
	must(t, engine.Lead(t.Context(), 1))
	must(t, engine.Commit(t.Context(), ovn.Change{Set: rows}))

	var attachers []*node.Attacher
	for _, chassis := range site.Chassis {
		ports, err := ovsport.Open(t.Context(), ovsport.Config{Endpoint: "unix:" + chassis.DBSock, Bridge: "br-int"})
		must(t, err)
		t.Cleanup(ports.Close)
		var links *podveth.Pods
		must(t, chassis.NetNS.Do(func(ns.NetNS) (err error) {
			links, err = podveth.New()
			return err
		}))
		t.Cleanup(links.Close)
		attachers = append(attachers, node.NewAttacher(node.Config{Addresses: addresses, Links: links, Ports: ports, MTU: 1400}))
	}
	add := func(a *node.Attacher, name string) (*ovntest.Pod, attach.Record) {
		pod := ovntest.NewPod(t)
		req := podRequest(name, pod.ProcPath())
		rec, err := a.Plan(t.Context(), req, placement.Decision{}, attach.InUse{})
		must(t, err)
		rec.ContainerID, rec.IfName, rec.Netns = req.ContainerID, req.IfName, req.Netns
		for range 2 { // again with the same record
			result, err := a.Connect(t.Context(), &rec)
			must(t, err)
			if len(result.IPs) != 1 || result.IPs[0].Address.String() != rec.Addresses[0].String() {
				t.Errorf("result: %v", result)
			}
		}
		return pod, rec
	}
	a, recA := add(attachers[0], "a")
	b, recB := add(attachers[1], "b")
	a.Device, b.Device = recA.HostInterface, recB.HostInterface
	a.Reaches("10.0.1.6")
	a.Reaches("10.0.1.1")
	must(t, attachers[0].Check(t.Context(), recA))
	for what, c := range map[string]struct {
		uid   string
		at    placement.Decision
		inUse attach.InUse
	}{
		"a pod of another UID": {uid: "another"},
		"another Subnet":       {uid: "uid-a", at: placement.Decision{Part: "other"}},
		"an address in use":    {uid: "uid-a", inUse: attach.InUse{Claims: map[string]attach.Key{recA.Claims[0]: recB.Key()}}},
	} {
		req := &cni.Request{Args: cni.Args{PodNamespace: "ns1", PodName: "a", PodUID: c.uid}}
		if _, err := attachers[0].Plan(t.Context(), req, c.at, c.inUse); cni.AsError(err) == nil || cni.AsError(err).Code != cni.CodeTryAgainLater {
			t.Errorf("%s: %v", what, err)
		}
	}
	site.Chassis[0].VSCtl("remove", "interface", recA.HostInterface, "external_ids", "iface-id")
	if attachers[0].Check(t.Context(), recA) == nil {
		t.Error("a check does not find that the logical port is missing")
	}
	must(t, attachers[0].Close(t.Context(), recA))
	if b.Ping("10.0.1.5", "") {
		t.Error("a closed pod answers")
	}
	for range 2 {
		if failed := attachers[0].Remove(t.Context(), []attach.Record{recA}); len(failed) != 0 {
			t.Errorf("remove: %v", failed)
		}
	}
	if out := ovntest.Run(t, site.Chassis[0].NetNS, "ip", "-o", "link", "show", "type", "veth"); strings.Contains(out, recA.HostInterface) {
		t.Errorf("links that are left: %s", out)
	}
}
