package ports

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	weftv1 "weft.dev/weft/api/weft/v1"
	"weft.dev/weft/internal/neutron/host"
	"weft.dev/weft/internal/neutron/pipeline"
	"weft.dev/weft/internal/ovsdb"
	"weft.dev/weft/internal/reconcile"
)

// A port whose address the node routes elsewhere is assigned to no pod and reports why, and is assigned once the node can route it.
func TestPortsThatTheNodeRoutesElsewhere(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := weftv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	object := pluggedPort("0a:58:c0:a8:01:35", "192.168.1.53/24")
	ps := New(Options{Node: "n1", Objects: fake.NewClientBuilder().WithScheme(scheme).WithObjects(object).Build()})
	where := "the node routes 192.168.1.53 by eth0"
	ps.opts.Elsewhere = func(netip.Addr) (string, error) { return where, nil }
	free := func() *Choice {
		t.Helper()
		if err := ps.read(t.Context()); err != nil {
			t.Fatal(err)
		}
		p := ps.all[object.Name]
		p.plugged = true
		if !p.wanted {
			t.Error("the port is unplugged")
		}
		chosen, _, _ := ps.choose("u", func(string, *Spec) bool { return false })
		return chosen
	}
	if chosen := free(); chosen != nil {
		t.Errorf("chosen: %+v", chosen)
	}
	if s := ps.all[object.Name].unroutable; s == nil || !strings.Contains(s.Error(), where) {
		t.Errorf("the port says %v", s)
	}
	where = ""
	chosen := free()
	if chosen == nil {
		t.Fatal("the port is not chosen although the node can route its address")
	}
	where = "192.168.1.53 is the node's own address" // since the last pass
	if chosen, _, _ := ps.Choose("u", func(string, *Spec) bool { return false }); chosen != nil {
		t.Errorf("chosen: %+v", chosen)
	}
}

// Of two ports whose names on the switch are equal, one is served, and the other reports why it is not.
func TestPortsWithTheSameDeviceNames(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := weftv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	builder := fake.NewClientBuilder().WithScheme(scheme)
	for i, name := range []string{"00000001-0000-4000-8000-000000000001", "00000001-0000-4000-8000-000000000002"} {
		builder = builder.WithObjects(&weftv1.NeutronPort{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: weftv1.NeutronPortSpec{
			Network: weftv1.NeutronPortNetwork{Namespace: "blue", Name: "blue", UID: "u"}, Node: "n1", MAC: "0a:58:0a:f4:00:05", Active: true,
			Addresses: []weftv1.NeutronPortAddress{{Address: fmt.Sprintf("10.244.0.%d/24", 5+i)}},
		}})
	}
	ps := New(Options{Node: "n1", Objects: builder.Build()})
	for range 2 {
		if err := ps.read(t.Context()); err != nil {
			t.Fatal(err)
		}
		served, refused := 0, 0
		for _, p := range ps.all {
			switch {
			case p.wanted && p.problem == nil:
				served++
			case !p.wanted && errors.Is(p.problem, errTwice):
				refused++
			}
		}
		if served != 1 || refused != 1 {
			t.Errorf("%d ports are served and %d refused, want one of each: %v", served, refused, ps.all)
		}
	}
}

// pluggedPort is a port of n1 that is plugged and ACTIVE.
func pluggedPort(mac, address string) *weftv1.NeutronPort {
	return &weftv1.NeutronPort{
		ObjectMeta: metav1.ObjectMeta{Name: "00000001-0000-4000-8000-000000000000"},
		Spec: weftv1.NeutronPortSpec{
			Network: weftv1.NeutronPortNetwork{Namespace: "blue", Name: "blue", UID: "u"}, Node: "n1", MAC: mac, Active: true,
			Addresses: []weftv1.NeutronPortAddress{{Address: address}},
		},
		Status: weftv1.NeutronPortStatus{Plugged: true},
	}
}

// flaky is a switch in memory whose database can be down.
type flaky struct {
	*ovsdb.Fake

	mu   sync.Mutex
	down bool
	// deleted counts how often each row was deleted.
	deleted map[ovsdb.Key]int
}

func (f *flaky) set(down bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.down = down
}

func (f *flaky) deletions(key ovsdb.Key) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.deleted[key]
}

func (f *flaky) Read(ctx context.Context) (map[ovsdb.Key]ovsdb.Row, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.down {
		return nil, reconcile.ErrUnavailable
	}
	return f.Fake.Read(ctx)
}

func (f *flaky) Commit(ctx context.Context, change ovsdb.Change) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.down {
		return reconcile.ErrUnavailable
	}
	for key := range change.Delete {
		f.deleted[key]++
	}
	return f.Fake.Commit(ctx, change)
}

// switched is the ports of a node with a switch in memory, and the only NeutronPort, which is ACTIVE.
func switched(t *testing.T) (ps *Ports, api client.Client, key client.ObjectKey, vswitch *flaky) {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := weftv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	object := pluggedPort("0a:58:0a:f4:00:05", "10.244.0.5/16")
	api = fake.NewClientBuilder().WithScheme(scheme).WithObjects(object).Build()
	vswitch = &flaky{Fake: ovsdb.NewFake(pipeline.Bridge), deleted: map[ovsdb.Key]int{}}
	vswitch.Hand(ovsdb.Change{Set: map[ovsdb.Key]ovsdb.Row{ovsdb.BridgeKey(host.IntegrationBridge): &ovsdb.Bridge{Name: host.IntegrationBridge}}})
	rows := reconcile.NewLoop(vswitch, reconcile.Options[ovsdb.Key, ovsdb.Row]{})
	var group sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	group.Go(func() { _ = rows.Run(ctx) })
	t.Cleanup(func() { cancel(); group.Wait() })
	if err := rows.Start(ctx, map[reconcile.Owner]map[ovsdb.Key]ovsdb.Row{pipeline.Owner: host.Rows(ovsdb.DatapathNetdev)}); err != nil {
		t.Fatal(err)
	}
	return New(Options{Node: "n1", Rows: rows, Objects: api, API: api}), api, client.ObjectKeyFromObject(object), vswitch
}

// step is a pass without its reports.
func step(t *testing.T, ps *Ports) {
	t.Helper()
	if err := tryStep(t, ps); err != nil {
		t.Fatal(err)
	}
}

// tryStep is a step that may fail.
func tryStep(t *testing.T, ps *Ports) error {
	t.Helper()
	return errors.Join(ps.read(t.Context()), ps.look(t.Context()), ps.unplug(t.Context()), ps.plug(t.Context()))
}

// A port that was unplugged and plugged again is free only once it is bound, also if no pod used it, and although the switch's database could
// not be read in between.
func TestPortsAreBoundAgain(t *testing.T) {
	ps, api, key, _ := switched(t)
	free := func() bool {
		chosen, _, _ := ps.choose("u", func(string, *Spec) bool { return false })
		return chosen != nil
	}
	step(t, ps)
	if !free() {
		t.Fatal("a port that Neutron reports as ACTIVE is not free")
	}
	mac := func(value string) {
		t.Helper()
		object := &weftv1.NeutronPort{}
		if err := api.Get(t.Context(), key, object); err != nil {
			t.Fatal(err)
		}
		object.Spec.MAC = value
		if err := api.Update(t.Context(), object); err != nil {
			t.Fatal(err)
		}
		step(t, ps)
	}
	mac("none")
	if ps.all[key.Name].plugged {
		t.Fatal("a port without a MAC address is plugged")
	}
	mac("0a:58:0a:f4:00:05")
	if !ps.all[key.Name].plugged || free() {
		t.Fatal("a port that was plugged again is free before it is bound")
	}

	failures := 0
	ps.opts.AwaitBound = func(ctx context.Context, names, _ []string) ([]string, error) {
		switch {
		case failures == 0:
			failures++
			return nil, io.ErrUnexpectedEOF
		case len(names) == 0:
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return names, nil
	}
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	group.Go(func() { (&bindings{ps}).follow(ctx) })
	defer group.Wait()
	defer cancel()
	for end := time.Now().Add(time.Minute); ; {
		_, _, changed := ps.choose("u", func(string, *Spec) bool { return false })
		if changed == nil {
			break
		}
		select {
		case <-changed:
		case <-time.After(time.Until(end)):
			t.Fatal("the port is bound, and not free")
		}
	}
	if failures != 1 {
		t.Errorf("%d failures", failures)
	}
}

// A port that could not be unplugged is not waited for.
func TestUsedPortsAreNotWaitedFor(t *testing.T) {
	ps, _, key, _ := switched(t)
	step(t, ps)
	p := ps.all[key.Name]
	p.again = true
	if all := (&bindings{ps}).unbound(func() {}); len(all.bind) != 1 || len(all.install) != 0 {
		t.Errorf("waited for: %v", all)
	}
	p.used = true
	if all := (&bindings{ps}).unbound(func() {}); len(all.bind) != 0 || len(all.install) != 0 {
		t.Errorf("waited for: %v", all)
	}
}

// A new port is free once OVN has installed its flows, before Neutron reports it as ACTIVE. Of a port that was plugged before, both count.
func TestInstalledPortsAreFree(t *testing.T) {
	ps, api, key, _ := switched(t)
	object := &weftv1.NeutronPort{}
	if err := api.Get(t.Context(), key, object); err != nil {
		t.Fatal(err)
	}
	object.Spec.Active = false
	if err := api.Update(t.Context(), object); err != nil {
		t.Fatal(err)
	}
	step(t, ps)
	installed := make(chan struct{})
	ps.opts.AwaitBound = func(ctx context.Context, _, install []string) ([]string, error) {
		select {
		case <-installed:
		case <-ctx.Done():
		}
		if len(install) == 0 {
			<-ctx.Done()
		}
		return install, ctx.Err()
	}
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	group.Go(func() { (&bindings{ps}).follow(ctx) })
	defer group.Wait()
	defer cancel()
	chosen, _, changed := ps.choose("u", func(string, *Spec) bool { return false })
	if chosen != nil {
		t.Fatal("a port is free before its flows are installed")
	}
	close(installed)
	select {
	case <-changed:
	case <-time.After(time.Minute):
	}
	if chosen, _, _ := ps.choose("u", func(string, *Spec) bool { return false }); chosen == nil {
		t.Fatal("a port whose flows are installed is not free")
	}
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.all[key.Name].again = true
	if ps.all[key.Name].active() {
		t.Error("a port that was plugged before is active without Neutron's report")
	}
}
