//go:build real

package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	stackubev1 "weft.dev/weft/api/stackube/v1"
	weftv1 "weft.dev/weft/api/weft/v1"
	"weft.dev/weft/deploy/crds"
	"weft.dev/weft/internal/apiservertest"
	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/link/marked"
	"weft.dev/weft/internal/link/podveth"
	"weft.dev/weft/internal/network"
	"weft.dev/weft/internal/neutron/pipeline"
	"weft.dev/weft/internal/nft"
	"weft.dev/weft/internal/nft/ruleset"
	noderoom "weft.dev/weft/internal/node"
	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/openflow/bridge"
	"weft.dev/weft/internal/openflow/ofproto"
	"weft.dev/weft/internal/openflow/ovstest"
	"weft.dev/weft/internal/ovsdb"
	"weft.dev/weft/internal/reconcile"
	"weft.dev/weft/internal/testwait"
)

// patience limits every wait for a condition.
const patience = 60 * time.Second * ovstest.Slowness

var server *apiservertest.Server //nolint:gochecknoglobals // set once, by TestMain

func TestMain(m *testing.M) {
	ctrllog.SetLogger(logr.Discard())
	os.Exit(apiservertest.MainWith(m, &server, crds.All, crds.Neutron))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func eventually(t *testing.T, what string, condition func() error) {
	t.Helper()
	testwait.Within(t, patience, what, condition)
}

// api is an administrator's client of the API server.
func api(t *testing.T) client.Client {
	t.Helper()
	scheme := runtime.NewScheme()
	must(t, errors.Join(clientgoscheme.AddToScheme(scheme), stackubev1.AddToScheme(scheme), weftv1.AddToScheme(scheme)))
	c, err := client.New(server.Config(), client.Options{Scheme: scheme})
	must(t, err)
	return c
}

// tenant creates a namespace with a Network with its name.
func tenant(t *testing.T, name string) *stackubev1.Network {
	t.Helper()
	c := api(t)
	must(t, client.IgnoreAlreadyExists(c.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})))
	n := &stackubev1.Network{ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: name}, Spec: stackubev1.NetworkSpec{CIDR: "10.244.0.0/16"}}
	must(t, c.Create(t.Context(), n))
	t.Cleanup(func() { _ = c.Delete(context.Background(), n) })
	return n
}

// portOf describes a NeutronPort: its UUID and its address are derived from number.
type portOf struct {
	network *stackubev1.Network
	node    string
	tag     int
	number  int
}

func (p portOf) uuid() string {
	return fmt.Sprintf("%08x-%04x-4000-8000-000000000000", p.number, p.tag)
}

func (p portOf) address() string { return fmt.Sprintf("10.244.%d.%d", p.number/200, 2+p.number%200) }

func (p portOf) mac() string {
	return fmt.Sprintf("0a:58:0a:f4:%02x:%02x", p.number/200, 2+p.number%200)
}

// create creates the object as the controller does; the caller creates the port in OpenStack.
func (p portOf) create(t *testing.T) *weftv1.NeutronPort {
	t.Helper()
	object := p.object()
	p.createObject(t, object)
	return object
}

// object is the port's object.
func (p portOf) object() *weftv1.NeutronPort {
	return &weftv1.NeutronPort{
		ObjectMeta: metav1.ObjectMeta{Name: p.uuid()},
		Spec: weftv1.NeutronPortSpec{
			Network: weftv1.NeutronPortNetwork{Namespace: p.network.Namespace, Name: p.network.Name, UID: string(p.network.UID), ID: "id"},
			Node:    p.node, MAC: p.mac(), MTU: 1400, Active: true,
			Addresses: []weftv1.NeutronPortAddress{{Address: p.address() + "/16", Gateway: "10.244.0.1"}},
		},
	}
}

// createObject creates an object until the test ends.
func (portOf) createObject(t *testing.T, object *weftv1.NeutronPort) {
	t.Helper()
	c := api(t)
	must(t, c.Create(t.Context(), object))
	t.Cleanup(func() { _ = c.Delete(context.Background(), object) })
}

// machine is a node: its switch and its namespace outlive the agents on it.
type machine struct {
	*ovstest.Switch
	name string
	boot string
	// ports is the path of the namespace with the peers of pre-plugged ports; empty: pods get interfaces of their own.
	ports string
	// rest is how long ports rest with the next agent.
	rest time.Duration
	// reported is the section of NodeNetwork.
	reported atomic.Pointer[weftv1.NodeNetworkSection]
}

// life starts an agent on the machine: engines, loops, watches. All end with ctx.
func (m *machine) life(ctx context.Context, t *testing.T, records network.Records) *Network {
	t.Helper()
	kind := Kind(m.name)
	var links *marked.Engine
	var rules *ruleset.Engine
	var pods *podveth.Pods
	must(t, m.NetNS.Do(func(ns.NetNS) error {
		var errs [3]error
		links, errs[0] = marked.New(marked.Options{Devices: kind.Care.Devices})
		rules, errs[1] = ruleset.NewEngine(ruleset.Options{Tables: kind.Care.Tables})
		pods, errs[2] = podveth.New()
		return errors.Join(errs[:]...)
	}))
	rows, err := ovsdb.Open(ctx, ovsdb.Config{Endpoint: "unix:" + m.DBSock, Bridges: []string{pipeline.Bridge}})
	must(t, err)
	flows := bridge.NewEngine(bridge.Config{Address: m.Mgmt(pipeline.Bridge)})
	vswitch := &noderoom.Switch{
		Datapath: ovstest.Datapath, Database: rows, Rows: reconcile.NewLoop(rows, reconcile.Options[ovsdb.Key, ovsdb.Row]{Name: "ovsdb"}),
		Bridges: map[string]*noderoom.Flows{pipeline.Bridge: {
			Engine: flows, Loop: reconcile.NewLoop(flows, reconcile.Options[openflow.Key, openflow.Entry]{Name: "openflow", Encode: openflow.Encode}),
		}},
		Settle: func(ctx context.Context) error {
			_, err := ofproto.Command(ctx, m.CtlSock, "revalidator/wait")
			return err
		},
	}
	n := &noderoom.Node{
		Name: m.name, BootID: m.boot, Ports: m.ports, Pods: pods,
		Links:  reconcile.NewLoop(links, reconcile.Options[link.Key, link.Item]{Name: "link"}),
		Rules:  reconcile.NewLoop(rules, reconcile.Options[nft.Key, nft.Item]{Name: "nft"}),
		Switch: func(context.Context) (*noderoom.Switch, error) { return vswitch, nil },
		Pass:   func(context.Context, string, []nft.Traffic) error { return nil },
	}
	objects := m.objects(t, &kind)
	var group sync.WaitGroup
	for _, run := range []func(context.Context) error{n.Links.Run, n.Rules.Run, vswitch.Rows.Run, vswitch.Bridges[pipeline.Bridge].Loop.Run, flows.Run, objects.Start} {
		group.Go(func() { _ = run(ctx) })
	}
	if !objects.WaitForCacheSync(ctx) { // a cache that is not started cannot be read
		t.Error("the cache has not started")
	}
	group.Go(func() {
		for { // as the agent does
			event, err := flows.Next(ctx)
			if err != nil {
				return
			}
			if event.Connected || event.Unclear || len(event.Drift) > 0 {
				vswitch.Bridges[pipeline.Bridge].Loop.Resync()
			}
		}
	})
	t.Cleanup(func() {
		group.Wait()
		rows.Close()
		links.Close()
		pods.Close()
		rules.Close()
	})
	var made *Network
	must(t, m.NetNS.Do(func(ns.NetNS) (err error) {
		made, err = newNetwork(ctx, n, network.Deps{
			Records: records, Objects: objects, API: api(t), Changed: func() {}, Report: func(s weftv1.NodeNetworkSection) { m.reported.Store(&s) },
		}, m.rest)
		return err
	}))
	return made
}

// objects are the kind's objects as the agent watches them.
func (m *machine) objects(t *testing.T, kind *network.Kind) ctrlcache.Cache {
	t.Helper()
	scheme := runtime.NewScheme()
	must(t, errors.Join(corev1.AddToScheme(scheme), kind.Scheme(scheme))) // as the agent does
	by := map[client.Object]ctrlcache.ByObject{}
	for _, o := range kind.Objects {
		by[o.Kind] = o.By
	}
	objects, err := ctrlcache.New(server.Config(), ctrlcache.Options{Scheme: scheme, ByObject: by})
	must(t, err)
	return objects
}

// flowsOf returns the flows of br-n.
func (m *machine) flowsOf() string { return m.OFCtl("dump-flows", pipeline.Bridge) }
