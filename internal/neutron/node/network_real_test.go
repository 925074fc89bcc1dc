//go:build real

package node

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/testutils"
	"sigs.k8s.io/controller-runtime/pkg/client"

	weftv1 "weft.dev/weft/api/weft/v1"
	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/network"
	"weft.dev/weft/internal/network/networktest"
	"weft.dev/weft/internal/openflow/ovstest"
	"weft.dev/weft/internal/ovn/ovntest"
	"weft.dev/weft/internal/placement"
)

// The network passes the suite of all networks, with ports as the controller creates them, on a real switch. br-int has no controller.
func TestConformance(t *testing.T) {
	boot, err := attach.ReadBootID()
	must(t, err)
	tag := 0
	networktest.RunConformance(t, func(t *testing.T) networktest.Subject {
		m := &machine{Switch: ovstest.Start(t), name: "conformance", boot: boot, ports: portsSpace(t)}
		m.VSCtl("add-br", "br-int", "--", "set", "bridge", "br-int", "datapath_type="+ovstest.Datapath)
		ovntest.Run(t, m.NetNS, "ip", "link", "set", "lo", "up")
		tag++
		blue := tenant(t, "default")
		for number := range 16 {
			portOf{network: blue, node: m.name, tag: tag, number: number}.create(t)
		}
		return networktest.Subject{
			Name: Name, At: placement.Decision{Network: Name, Part: blue.Name}, BootID: boot,
			Start: func(ctx context.Context, t *testing.T, records network.Records) (network.Network, network.Runner) {
				made := m.life(ctx, t, records)
				return made, made
			},
			Netns: func(t *testing.T) string {
				made, err := testutils.NewNS()
				must(t, err)
				t.Cleanup(func() { _ = made.Close(); _ = testutils.UnmountNS(made) })
				return made.Path()
			},
			Connected: func(t *testing.T, _ string, rec attach.Record, want bool) {
				t.Helper()
				wait := "1"
				if want {
					wait = "30"
				}
				_, err := ovntest.Try(m.NetNS, "ping", "-n", "-q", "-c", "1", "-W", wait, rec.Addresses[0].Addr().String())
				if (err == nil) != want {
					t.Errorf("the host reaches %s: %v, want %t\n%s", rec.Addresses[0].Addr(), err, want, m.flowsOf())
				}
			},
		}
	})
}

// portsSpace returns the path of a new namespace with the peers of pre-plugged ports.
func portsSpace(t *testing.T) string {
	t.Helper()
	space, err := testutils.NewNS()
	must(t, err)
	t.Cleanup(func() { _ = errors.Join(space.Close(), testutils.UnmountNS(space)) })
	return space.Path()
}

// noRecords are the records of an agent whose attachments have ended.
type noRecords struct{}

func (noRecords) Attached() []attach.Record                { return nil }
func (noRecords) Put(context.Context, attach.Record) error { return nil }
func (noRecords) Reap(attach.Record)                       {}
func (noRecords) TryLock(attach.Key) (func(), bool)        { return func() {}, true }

// A port that a pod used is plugged again and rests, also if the agent ended before any status reported a pod on it, and also if it ended
// after the port was unplugged. A port that no pod used is free at once.
func TestPortRestsAfterACrash(t *testing.T) {
	boot, err := attach.ReadBootID()
	must(t, err)
	m := &machine{Switch: ovstest.Start(t), name: "crashed", boot: boot}
	m.VSCtl("add-br", "br-int", "--", "set", "bridge", "br-int", "datapath_type="+ovstest.Datapath)
	ovntest.Run(t, m.NetNS, "ip", "link", "set", "lo", "up")
	blue := tenant(t, "default")
	port := portOf{network: blue, node: m.name, tag: 77, number: 1}
	port.create(t)
	at := placement.Decision{Network: Name, Part: blue.Name}
	request := func(container string) *cni.Request {
		return &cni.Request{
			Command: cni.CommandAdd, ContainerID: container, IfName: "eth0", Args: cni.Args{PodNamespace: blue.Namespace, PodName: container}, NetConf: &cni.NetConf{},
		}
	}
	live := func() (n *Network, crash func()) {
		ctx, cancel := context.WithCancel(context.Background())
		n = m.life(ctx, t, noRecords{})
		t.Cleanup(cancel) // runs before the cleanup of life, which waits for its end
		done := make(chan error, 1)
		go func() { done <- n.Run(ctx) }()
		eventually(t, "the node is ready", n.Ready)
		return n, func() {
			cancel()
			must(t, <-done)
		}
	}
	plan := func(n *Network, patience time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		rec, err := n.Plan(ctx, request("first"), at, attach.InUse{})
		if err != nil {
			return err
		}
		rec.ContainerID, rec.IfName, rec.PodNamespace, rec.PodName = "first", "eth0", blue.Namespace, "first"
		netns, err := testutils.NewNS()
		must(t, err)
		t.Cleanup(func() { _ = netns.Close(); _ = testutils.UnmountNS(netns) })
		rec.Netns = netns.Path()
		_, err = n.Connect(t.Context(), &rec)
		return err
	}
	n, crash := live()
	must(t, plan(n, patience))
	crash()
	forget(t, port) // the API server was unreachable: no status was written

	m.rest = time.Hour
	n, crash = live()
	eventually(t, "the port is plugged anew and rests", func() error {
		object := &weftv1.NeutronPort{}
		must(t, api(t).Get(t.Context(), client.ObjectKey{Name: port.uuid()}, object))
		if object.Status.ReleasedAt == nil || !object.Status.Plugged {
			return fmt.Errorf("status %+v", object.Status)
		}
		return nil
	})
	if err := plan(n, time.Second); cni.AsError(err).Code != cni.CodeTryAgainLater {
		t.Errorf("ADD on a port that has not rested: %v", err)
	}
	crash()
	forget(t, port)

	n, crash = live()
	defer crash()
	if err := plan(n, time.Second); cni.AsError(err).Code != cni.CodeTryAgainLater {
		t.Errorf("ADD on a port that has not rested, after another restart: %v", err)
	}
	fresh := portOf{network: blue, node: m.name, tag: 77, number: 2}
	fresh.create(t)
	must(t, plan(n, patience))
}

// forget clears what the agent has written about a port.
func forget(t *testing.T, p portOf) {
	t.Helper()
	object := &weftv1.NeutronPort{}
	must(t, api(t).Get(t.Context(), client.ObjectKey{Name: p.uuid()}, object))
	object.Status = weftv1.NeutronPortStatus{Plugged: true}
	must(t, api(t).Status().Update(t.Context(), object))
}

// A pod on a pre-plugged pair changes nothing in the switch's database, is closed when its DEL is answered, and leaves nothing: also if it has
// hidden its interface in another namespace, and if the agent ends right after the DEL. Then its port rests.
func TestPrepluggedPairs(t *testing.T) {
	m := newMachine(t, "preplugged", 91)
	m.rest = time.Hour
	dir := filepath.Join(t.TempDir(), "attachments")
	s, stop := m.serve(t, dir)
	t.Cleanup(stop)
	eventually(t, "the node is ready", s.Ready)
	pairs := func() int {
		out, err := ovntest.Try(m.NetNS, "ip", "-o", "link", "show", "type", "veth")
		must(t, err)
		return strings.Count(out, ": wp-")
	}
	eventually(t, "all ports are free", func() error {
		for number := range 4 {
			object := &weftv1.NeutronPort{}
			must(t, api(t).Get(t.Context(), client.ObjectKey{Name: portOf{tag: 91, number: number}.uuid()}, object))
			if !object.Status.Plugged {
				return fmt.Errorf("port %s is not plugged: %+v", object.Name, object.Status)
			}
		}
		if found := pairs(); found != 4 {
			return fmt.Errorf("there are %d pairs", found)
		}
		return nil
	})
	configured := func() string { return m.VSCtl("get", "Open_vSwitch", ".", "next_cfg") }
	before := configured()
	pod, hidden := ovntest.NewPod(t), ovntest.NewPod(t)
	result, err := s.handler.Add(t.Context(), s.request(cni.CommandAdd, "preplugged", "a", pod.ProcPath()))
	must(t, err)
	address := result.IPs[0].Address.IP.String()
	if name := result.Interfaces[0].Name; !strings.HasPrefix(name, "wp-") || configured() != before {
		t.Errorf("interface %s, configuration %s of the switch, before %s", name, configured(), before)
	}
	must(t, s.pings(address))
	pod.IP("link", "set", "eth0", "name", "kept")
	pod.IP("link", "set", "kept", "netns", hidden.ProcPath())
	hidden.IP("addr", "add", address+"/16", "dev", "kept")
	hidden.IP("link", "set", "kept", "up")
	s.del(t, "preplugged", "a")
	s.silent(t, address)
	stop()
	var rested portOf
	for number := range 4 {
		if p := (portOf{node: m.name, tag: 91, number: number}); p.address() == address {
			rested = p
		}
	}
	forget(t, rested) // the API server was unreachable: no status was written

	s, stop = m.serve(t, dir)
	t.Cleanup(stop)
	eventually(t, "the port is plugged again and rests", func() error {
		object := &weftv1.NeutronPort{}
		must(t, api(t).Get(t.Context(), client.ObjectKey{Name: rested.uuid()}, object))
		if object.Status.ReleasedAt == nil || !object.Status.Plugged || object.Status.Pod != nil {
			return fmt.Errorf("status %+v", object.Status)
		}
		return nil
	})
	if out, err := ovntest.Try(hidden.NetNS, "ip", "link", "show", "kept"); err == nil {
		t.Errorf("the former pod still has an interface: %s", out)
	}
	eventually(t, "each port has a pair", func() error {
		if found := pairs(); found != 4 {
			return fmt.Errorf("there are %d", found)
		}
		return nil
	})
	for i := range 3 { // the others are free
		_, other := s.add(t, "preplugged", fmt.Sprint("b", i))
		if other == address {
			t.Error("a port that has not rested is used")
		}
		must(t, s.pings(other))
	}
}
