package ports

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	weftv1 "weft.dev/weft/api/weft/v1"
	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/link/podlink"
	"weft.dev/weft/internal/neutron/host"
	"weft.dev/weft/internal/ovsdb"
)

const portSpace = "/ports"

// paired is switched with pairs in memory.
func paired(t *testing.T, links *podlink.Fake) (ps *Ports, api client.Client, p func() *port) {
	t.Helper()
	ps, api, key, _ := switched(t)
	ps.pairs = pairs{links: links, path: portSpace, shape: podlink.Preplugged{HostGroup: host.PodGroup, TxOffloadOff: true}}
	if err := ps.pairs.recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	return ps, api, func() *port { return ps.all[key.Name] }
}

// pairsOf returns the existing pairs.
func pairsOf(t *testing.T, links *podlink.Fake) map[string]podlink.PrepluggedPort {
	t.Helper()
	found, err := links.ListPreplugged(t.Context(), portSpace)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func chosenOf(ps *Ports) *Choice {
	chosen, _, _ := ps.choose("u", func(string, *Spec) bool { return false })
	return chosen
}

// attached is the record of a pod on a port that was chosen for it.
func attached(t *testing.T, container string, chosen *Choice) attach.Record {
	t.Helper()
	rec := attach.Record{
		ContainerID: container, IfName: "eth0", HostInterface: "wp" + container, MAC: "0a:58:0a:f4:00:05",
		MTU: cmp.Or(chosen.Spec.MTU, defaultMTU), Details: fmt.Appendf(nil, `{"port":%q,"slot":%d,"network":"blue"}`, chosen.UUID, chosen.Slot),
	}
	if chosen.Paired {
		rec.HostInterface = chosen.Slot.Preplugged()
	}
	return rec
}

// hold attaches a pod to the port that is free, and returns its record and the rows to be written.
func hold(t *testing.T, ps *Ports, container string) (attach.Record, int) {
	t.Helper()
	chosen := chosenOf(ps)
	if chosen == nil {
		t.Fatal("no port is free")
	}
	rec := attached(t, container, chosen)
	d, err := DetailsOf(&rec)
	if err != nil {
		t.Fatal(err)
	}
	rows, err := ps.Hold(&rec, &d)
	if err != nil {
		t.Fatal(err)
	}
	return rec, len(rows)
}

func rowsOf(t *testing.T, ps *Ports) map[ovsdb.Key]ovsdb.Row {
	t.Helper()
	rows, err := ps.opts.Rows.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

// A port is plugged with a pair, a pod on it changes no row of the switch, and the port's next pod gets another pair.
func TestPortsWithPairs(t *testing.T) {
	links := podlink.NewFake(portSpace, "/pod")
	ps, _, p := paired(t, links)
	step(t, ps)
	name := p().slot.Preplugged()
	rows := rowsOf(t, ps)
	if row, is := rows[ovsdb.PortKey(name)].(*ovsdb.Port); !is || uint32(row.OFPort) != p().slot.Pod() || !pairsOf(t, links)[name].Idle {
		t.Fatalf("rows %v, pairs %v", rows, pairsOf(t, links))
	}
	rec, written := hold(t, ps, "a")
	if written != 0 || rec.HostInterface != name {
		t.Errorf("a pod on the pair writes the rows of %d owners, its interface is %s", written, rec.HostInterface)
	}
	if _, err := links.Create(t.Context(), podlink.Pair{HostName: name, PodName: "eth0", Netns: "/pod", Owner: rec.Key().Owner(), Preplugged: portSpace}); err != nil {
		t.Fatal(err)
	}
	step(t, ps)
	if now := rowsOf(t, ps); !maps.EqualFunc(now, rows, ovsdb.Row.Equal) {
		t.Errorf("a pod changes rows: %v\nthey were: %v", now, rows)
	}
	ps.Release(rec)
	if left, _ := ps.stillPlugged([]attach.Record{rec}); len(left) != 1 {
		t.Error("a port that its pod has left passes for one that was unplugged")
	}
	if chosenOf(ps) != nil {
		t.Error("a port that its pod has left is free")
	}
	step(t, ps)
	if left, _ := ps.stillPlugged([]attach.Record{rec}); len(left) != 0 {
		t.Errorf("still plugged: %v", left)
	}
	if now := pairsOf(t, links); !now[name].Idle || len(now) != 1 {
		t.Errorf("pairs after the pod: %v", now)
	}
	if mark, _ := markOf(rowsOf(t, ps)); mark.Used || mark.Released.IsZero() {
		t.Errorf("the mark says %+v, want that the port rests", mark)
	}
}

// markOf returns the mark of the only port.
func markOf(rows map[ovsdb.Key]ovsdb.Row) (host.Mark, bool) {
	for _, row := range rows {
		if _, left, ok := host.LeftOf(row); ok {
			return left.Mark, true
		}
	}
	return host.Mark{}, false
}

// Without the namespace of pre-plugged ports, a pod gets an interface of its own. Once there is one, ports without pods get pairs, also if
// a link of an interrupted run is left. A port that was chosen before it had a pair is not used with another interface.
func TestPairsOnceTheirNamespaceExists(t *testing.T) {
	links := podlink.NewFake("/pod")
	ps, _, p := paired(t, links)
	step(t, ps)
	before := chosenOf(ps)
	if before == nil || before.Paired || p().paired() {
		t.Fatalf("without the namespace: %+v", before)
	}
	links.AddNamespace(portSpace)
	if err := links.CreatePreplugged(t.Context(), portSpace, podlink.Preplugged{Name: p().slot.Preplugged()}); err != nil {
		t.Fatal(err)
	}
	step(t, ps)
	if chosen := chosenOf(ps); chosen == nil || !chosen.Paired {
		t.Fatalf("with the namespace: %+v", chosen)
	}
	rec := attached(t, "a", before)
	d, err := DetailsOf(&rec)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ps.Hold(&rec, &d); err == nil {
		t.Error("an attachment with an interface of its own gets a port with a pair")
	}
}

// A pod with an interface of its own keeps its port without a pair until it ends.
func TestOwnInterface(t *testing.T) {
	links := podlink.NewFake()
	ps, _, p := paired(t, links)
	step(t, ps)
	rec, written := hold(t, ps, "a")
	if written != 1 || rec.HostInterface == p().slot.Preplugged() {
		t.Errorf("rows of %d owners, interface %s", written, rec.HostInterface)
	}
	links.AddNamespace(portSpace)
	step(t, ps)
	if p().paired() {
		t.Error("the port of an attached pod got a pair")
	}
	ps.Release(rec)
	step(t, ps)
	if !p().paired() {
		t.Error("the port has no pair after its pod")
	}
}

// The pair of a port whose network's MTU changes is created anew, but not under a pod.
func TestPairsFollowTheMTU(t *testing.T) {
	links := podlink.NewFake(portSpace)
	ps, api, p := paired(t, links)
	step(t, ps)
	mtu := func(value int32) {
		t.Helper()
		object := &weftv1.NeutronPort{}
		if err := api.Get(t.Context(), client.ObjectKeyFromObject(p().object), object); err != nil {
			t.Fatal(err)
		}
		object.Spec.MTU = value
		if err := api.Update(t.Context(), object); err != nil {
			t.Fatal(err)
		}
		step(t, ps)
	}
	mtu(1400)
	name := p().slot.Preplugged()
	if now := pairsOf(t, links)[name].MTU; now != 1400 || !p().plugged {
		t.Errorf("MTU %d, plugged %t", now, p().plugged)
	}
	p().bound = true
	hold(t, ps, "a")
	mtu(1300)
	if now := pairsOf(t, links)[name].MTU; now != 1400 {
		t.Errorf("the MTU of a pod's pair has become %d", now)
	}
}

// An agent takes over the pairs of the former one: those of attached pods, idle ones with their ports, and used ones, whose ports are
// unplugged. It deletes those without a port.
func TestPairsAfterARestart(t *testing.T) {
	for _, test := range []struct {
		name string
		// on puts an interface on the pair, and kept keeps its record.
		on, kept bool
		wantFree bool
	}{{"idle", false, false, true}, {"used", true, false, false}, {"attached", true, true, false}} {
		t.Run(test.name, func(t *testing.T) {
			links := podlink.NewFake(portSpace, "/pod")
			former, _, p := paired(t, links)
			step(t, former)
			name := p().slot.Preplugged()
			rec := attached(t, "a", chosenOf(former))
			if test.on {
				if _, err := links.Create(t.Context(), podlink.Pair{HostName: name, PodName: "eth0", Netns: "/pod", Owner: rec.Key().Owner(), Preplugged: portSpace}); err != nil {
					t.Fatal(err)
				}
			}
			if err := links.CreatePreplugged(t.Context(), portSpace, podlink.Preplugged{Name: host.Slot(77).Preplugged()}, podlink.Preplugged{Name: "weft-p77"}); err != nil {
				t.Fatal(err)
			}
			ps, _, now := paired(t, links)
			var recs []attach.Record
			if test.kept {
				recs = append(recs, rec)
			}
			if err := errors.Join(ps.recover(rowsOf(t, former), recs), ps.read(t.Context())); err != nil {
				t.Fatal(err)
			}
			if !now().paired() || now().used != test.on {
				t.Errorf("pair %+v, used %t", now().pair, now().used)
			}
			if err := ps.pairs.sweep(t.Context()); err != nil {
				t.Fatal(err)
			}
			if left := slices.Sorted(maps.Keys(pairsOf(t, links))); !slices.Equal(left, []string{"weft-p77", name}) {
				t.Errorf("pairs: %v", left)
			}
			step(t, ps)
			if (chosenOf(ps) != nil) != test.wantFree {
				t.Errorf("free: %+v", chosenOf(ps))
			}
			if idle := pairsOf(t, links)[name].Idle; idle == test.kept {
				t.Errorf("the pair is idle: %t", idle)
			}
		})
	}
}

// broken is pairs of which one cannot be created.
type broken struct {
	*podlink.Fake
	name string
}

func (b *broken) CreatePreplugged(ctx context.Context, path string, list ...podlink.Preplugged) error {
	for _, pair := range list {
		if pair.Name == b.name {
			return fmt.Errorf("%s: %w", pair.Name, link.ErrForeign)
		}
	}
	return b.Fake.CreatePreplugged(ctx, path, list...)
}

// A pair that cannot be created is reported, and does not keep the others from being created.
func TestPairsFailAlone(t *testing.T) {
	m := pairs{links: &broken{podlink.NewFake(portSpace), host.Slot(1).Preplugged()}, path: portSpace}
	created, err := m.create(t.Context(), []podlink.Preplugged{m.of(0, 0), m.of(1, 0), m.of(2, 0)})
	if !errors.Is(err, link.ErrForeign) || !created["wp-0"] || created["wp-1"] || !created["wp-2"] {
		t.Errorf("created %v: %v", created, err)
	}
}

// Passes after pods come and go are gathered, and others are not delayed.
func TestPassesAreGathered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ps := newAlarm()
		took := func() time.Duration {
			began := time.Now()
			if !ps.due(t.Context(), nil) {
				t.Fatal("it has ended")
			}
			return time.Since(began)
		}
		ps.wakeLater()
		go func() { <-time.After(gather / 2); ps.wakeLater() }()
		if d := took(); d != gather {
			t.Errorf("a pass after %v, want %v after the first pod", d, gather)
		}
		ps.wakeLater()
		ps.WakeUp()
		if d := took(); d != 0 {
			t.Errorf("a pass that does not wait for pods comes after %v", d)
		}
	})
}
