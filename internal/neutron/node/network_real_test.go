//go:build real

package node

import (
	"context"
	"fmt"
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
		m := &machine{Switch: ovstest.Start(t), name: "conformance", boot: boot}
		m.VSCtl("add-br", "br-int", "--", "set", "bridge", "br-int", "datapath_type=netdev")
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
	m.VSCtl("add-br", "br-int", "--", "set", "bridge", "br-int", "datapath_type=netdev")
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
