//go:build real

package node_test

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/containernetworking/plugins/pkg/ns"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/link/marked"
	"weft.dev/weft/internal/link/podveth"
	"weft.dev/weft/internal/network"
	"weft.dev/weft/internal/network/networktest"
	"weft.dev/weft/internal/nft"
	"weft.dev/weft/internal/nft/ruleset"
	weftnode "weft.dev/weft/internal/node"
	"weft.dev/weft/internal/ovn"
	"weft.dev/weft/internal/ovn/ovntest"
	"weft.dev/weft/internal/placement"
	"weft.dev/weft/internal/reconcile"
	"weft.dev/weft/internal/vpc/node"
	"weft.dev/weft/internal/vpc/northbound"
	"weft.dev/weft/internal/vpc/objects"
)

// readyPorts is how many logical ports the tests' subnet has.
const readyPorts = 20

func testSubnet() objects.Subnet {
	return objects.Subnet{
		Meta: objects.Meta{Kind: "Subnet", Name: "s", UID: "s-uid"}, Prefix: netip.MustParsePrefix("10.0.1.0/24"), Gateway: netip.MustParseAddr("10.0.1.1"),
	}
}

// eachItsOwn assigns each pod its own address, as the controller does.
type eachItsOwn struct {
	mu    sync.Mutex
	given map[string]netip.Addr
}

func (e *eachItsOwn) Of(_ context.Context, namespace, pod, _ string) (node.Address, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	subnet := testSubnet()
	addr, there := e.given[namespace+"/"+pod]
	if !there {
		addr = netip.AddrFrom4([4]byte{10, 0, 1, byte(2 + len(e.given))})
		e.given[namespace+"/"+pod] = addr
	}
	return node.Address{
		Subnet: subnet.Name, SubnetUID: subnet.UID, Prefix: netip.PrefixFrom(addr, 24), Gateway: subnet.Gateway,
		MAC: northbound.MAC(addr), Port: northbound.PortName(subnet.Name, addr),
	}, nil
}

// siteWithPorts is an OVN with a number of chassis and the tests' subnet.
func siteWithPorts(t *testing.T, chassis int) *ovntest.Site {
	t.Helper()
	site := ovntest.NewSite(t, chassis)
	subnet, vpc := testSubnet(), objects.VPC{Meta: objects.Meta{Kind: "Vpc", Name: "v", UID: "v-uid"}}
	rows := northbound.Switch(&subnet, vpc.Meta)
	maps.Copy(rows, northbound.Router(&northbound.Network{VPC: vpc, Subnets: []objects.Subnet{subnet}}).Rows)
	for i := range readyPorts {
		key, row := northbound.SwitchPort(&subnet, northbound.Port{Addr: netip.AddrFrom4([4]byte{10, 0, 1, byte(2 + i)})})
		rows[key] = row
	}
	engine, err := ovn.Open(t.Context(), ovn.Config{Endpoints: []string{site.NB()}})
	must(t, err)
	t.Cleanup(engine.Close)
	must(t, engine.Lead(t.Context(), 1))
	must(t, engine.Commit(t.Context(), ovn.Change{Set: rows}))
	return site
}

// startNode opens the engines of a chassis and runs their loops until ctx ends.
func startNode(ctx context.Context, t *testing.T, host ns.NetNS, boot string) *weftnode.Node {
	t.Helper()
	var links *marked.Engine
	var rules *ruleset.Engine
	var pods *podveth.Pods
	must(t, host.Do(func(ns.NetNS) error {
		var errs [3]error
		links, errs[0] = marked.New(marked.Options{})
		rules, errs[1] = ruleset.NewEngine(ruleset.Options{Tables: node.Care().Tables})
		pods, errs[2] = podveth.New()
		return errors.Join(errs[:]...)
	}))
	n := &weftnode.Node{
		Name: "node1", BootID: boot, Pods: pods,
		Links: reconcile.NewLoop(links, reconcile.Options[link.Key, link.Item]{Name: "link"}),
		Rules: reconcile.NewLoop(rules, reconcile.Options[nft.Key, nft.Item]{Name: "nft"}),
	}
	var group sync.WaitGroup
	group.Go(func() { _ = n.Links.Run(ctx) })
	group.Go(func() { _ = n.Rules.Run(ctx) })
	t.Cleanup(func() {
		group.Wait()
		links.Close()
		pods.Close()
		rules.Close()
	})
	return n
}

// The network passes the suite of all networks, with real OVN and packets.
func TestConformance(t *testing.T) {
	networktest.RunConformance(t, func(t *testing.T) networktest.Subject {
		site := siteWithPorts(t, 1)
		host := site.Chassis[0].NetNS
		boot, err := attach.ReadBootID()
		must(t, err)
		addresses := &eachItsOwn{given: map[string]netip.Addr{}}
		return networktest.Subject{
			Name: "vpc", At: placement.Decision{Network: "vpc"}, BootID: boot,
			Start: func(ctx context.Context, t *testing.T, records network.Records) (network.Network, network.Runner) {
				n := node.New(startNode(ctx, t, host, boot), network.Deps{Records: records},
					node.Options{Node: "node1", Database: "unix:" + site.Chassis[0].DBSock, Addresses: addresses})
				return n, n
			},
			Netns:     func(t *testing.T) string { return ovntest.NewPod(t).ProcPath() },
			Connected: connected,
		}
	})
}

// connected pings the router. A pod that should be connected may need a second packet: OVN answers the first one's ARP.
func connected(t *testing.T, netns string, _ attach.Record, want bool) {
	t.Helper()
	pod, err := ns.GetNS(netns)
	must(t, err)
	defer func() { _ = pod.Close() }()
	ping := func() bool {
		_, err := ovntest.Try(pod, "ping", "-n", "-q", "-c", "1", "-W", "1", "10.0.1.1")
		return err == nil
	}
	if want {
		ovntest.Eventually(t, "the pod reaches its router", ping)
	} else if ping() {
		t.Error("the pod reaches its router")
	}
}

// Changes of a pod's row by other programs are reverted, and the node's kernel accepts no frame of the pod.
func TestPutBack(t *testing.T) {
	site := siteWithPorts(t, 1)
	chassis := site.Chassis[0]
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	records := &oneRecord{}
	n := node.New(startNode(ctx, t, chassis.NetNS, "boot"), network.Deps{Records: records},
		node.Options{Node: "node1", Database: "unix:" + chassis.DBSock, Addresses: &eachItsOwn{given: map[string]netip.Addr{}}})
	var group sync.WaitGroup
	group.Go(func() {
		if err := n.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); group.Wait() })
	ovntest.Eventually(t, "the network is ready", func() bool { return n.Ready() == nil })
	pod := ovntest.NewPod(t)
	rec, err := n.Plan(ctx, podRequest("a", pod.ProcPath()), placement.Decision{}, attach.InUse{})
	must(t, err)
	rec.ContainerID, rec.IfName, rec.Netns = "sandbox-a", "eth0", pod.ProcPath()
	_, err = n.Connect(ctx, &rec)
	must(t, err)
	records.set(rec)
	pod.Reaches("10.0.1.1")
	chassis.VSCtl("del-port", "br-int", rec.HostInterface)
	ovntest.Eventually(t, "the row is put back", func() bool { return n.Check(ctx, rec) == nil })
	pod.Reaches("10.0.1.1")
	chassis.VSCtl("set", "interface", rec.HostInterface, "external_ids:iface-id=other")
	ovntest.Eventually(t, "the logical port is put back", func() bool { return n.Check(ctx, rec) == nil })
	pod.Reaches("10.0.1.1")

	// To the host veth's MAC, for an address of the node behind it: the node's kernel would answer, or forward it.
	ovntest.Run(t, chassis.NetNS, "ip", "addr", "add", "192.0.2.1/32", "dev", "lo")
	described := strings.Fields(ovntest.Run(t, chassis.NetNS, "ip", "-br", "link", "show", rec.HostInterface))
	ovntest.Run(t, chassis.NetNS, "ip", "route", "add", "10.0.1.0/24", "dev", rec.HostInterface)
	pod.IP("neigh", "replace", "10.0.1.99", "lladdr", described[2], "dev", "eth0")
	pod.IP("route", "add", "192.0.2.1", "via", "10.0.1.99")
	if pod.Ping("192.0.2.1", "") {
		t.Error("the node answers a frame that a pod sent to the host end's MAC address")
	}
	must(t, n.Close(ctx, rec))
	if pod.Ping("10.0.1.1", "") {
		t.Error("a closed pod reaches its router")
	}
	if failed := n.Remove(ctx, []attach.Record{rec}); len(failed) > 0 {
		t.Errorf("remove: %v", failed)
	}
	records.set(attach.Record{})
}

// oneRecord has one attachment, or none.
type oneRecord struct {
	network.Records
	mu  sync.Mutex
	rec attach.Record
}

func (o *oneRecord) set(rec attach.Record) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.rec = rec
}

func (o *oneRecord) Attached() []attach.Record {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.rec.ContainerID == "" {
		return nil
	}
	return []attach.Record{o.rec}
}
