package ports

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	weftv1 "weft.dev/weft/api/weft/v1"
	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/link/podlink"
	"weft.dev/weft/internal/neutron/host"
	"weft.dev/weft/internal/ovsdb"
	"weft.dev/weft/internal/reconcile"
)

// errLink is why a link cannot be deleted.
var errLink = errors.New("the kernel is out of memory")

// kept is links in memory of which some cannot be deleted.
type kept struct {
	*podlink.Fake
	names map[string]error
}

func (k *kept) Delete(ctx context.Context, names ...string) error {
	var errs []error
	for _, name := range names {
		if err := k.names[name]; err != nil {
			errs = append(errs, err)
		} else {
			errs = append(errs, k.Fake.Delete(ctx, name))
		}
	}
	return errors.Join(errs...)
}

// alter changes the only NeutronPort.
func alter(t *testing.T, api client.Client, key client.ObjectKey, change func(*weftv1.NeutronPort)) {
	t.Helper()
	object := &weftv1.NeutronPort{}
	if err := api.Get(t.Context(), key, object); err != nil {
		t.Fatal(err)
	}
	change(object)
	if err := api.Update(t.Context(), object); err != nil {
		t.Fatal(err)
	}
}

// plugged is the ports of a node with pairs in memory, after the first step.
type plugged struct {
	*Ports
	t       *testing.T
	api     client.Client
	key     client.ObjectKey
	vswitch *flaky
	links   *kept
}

func newPlugged(t *testing.T) *plugged {
	t.Helper()
	p := &plugged{t: t, links: &kept{podlink.NewFake(portSpace, "/pod"), map[string]error{}}}
	p.Ports, p.api, p.key, p.vswitch = switched(t)
	p.pairs = pairs{links: p.links, path: portSpace, shape: podlink.Preplugged{HostGroup: host.PodGroup, TxOffloadOff: true}}
	step(t, p.Ports)
	return p
}

func (p *plugged) port() *port { return p.all[p.key.Name] }

func (p *plugged) mtu(value int32) {
	p.t.Helper()
	alter(p.t, p.api, p.key, func(object *weftv1.NeutronPort) { object.Spec.MTU = value })
}

// fails is a step that has to fail.
func (p *plugged) fails() {
	p.t.Helper()
	if err := tryStep(p.t, p.Ports); err == nil {
		p.t.Fatal("the step does not fail")
	}
}

// far is the key of the port's patch port on br-int.
func (p *plugged) far() ovsdb.Key { return ovsdb.PortKey(host.IntegrationPort(p.key.Name)) }

// remains returns what is left of the port: rows that are programmed or desired, and pairs.
func (p *plugged) remains() (all []string) {
	p.t.Helper()
	desired, _ := p.opts.Rows.Desired()
	for key := range rowsOf(p.t, p.Ports) {
		if key.Name == p.far().Name || host.Slot(0).Preplugged() == key.Name {
			all = append(all, "row "+key.Name)
		}
	}
	if _, is := desired[p.far()]; is {
		all = append(all, "desired row "+p.far().Name)
	}
	return append(all, slices.Sorted(maps.Keys(pairsOf(p.t, p.links.Fake)))...)
}

// A port that cannot be unplugged is no pod's, keeps its pair while its rows may exist, and is unplugged once it can be: also if what made
// it outdated is undone meanwhile.
func TestUnplugIsRepeated(t *testing.T) {
	for name, fail := range map[string]func(p *plugged, down bool){
		"the database cannot be changed": func(p *plugged, down bool) { p.vswitch.set(down) },
		"the database cannot be read":    func(p *plugged, down bool) { p.vswitch.set(down); p.opts.Rows.Resync() },
		"the pair cannot be deleted": func(p *plugged, down bool) {
			delete(p.links.names, host.Slot(0).Preplugged())
			if down {
				p.links.names[host.Slot(0).Preplugged()] = errLink
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlugged(t)
			p.mtu(1400)
			fail(p, true)
			p.fails()
			p.mtu(0) // as it was plugged
			p.fails()
			if chosen := chosenOf(p.Ports); chosen != nil {
				t.Errorf("chosen although it is being unplugged: %+v", chosen)
			}
			if status := p.port().status(p.opts.Rows); !status.Plugged || status.Message == "" {
				t.Errorf("status %+v", status)
			}
			if pairs := pairsOf(t, p.links.Fake); len(pairs) != 1 {
				t.Errorf("pairs: %v", pairs)
			}
			fail(p, false)
			step(t, p.Ports)
			if now := p.port(); !now.plugged || now.bound || !now.again || p.vswitch.deletions(p.far()) != 1 {
				t.Errorf("plugged %t, bound %t, again %t, row deleted %d times", now.plugged, now.bound, now.again, p.vswitch.deletions(p.far()))
			}
			if mtu := pairsOf(t, p.links.Fake)[host.Slot(0).Preplugged()].MTU; mtu != defaultMTU {
				t.Errorf("MTU of the pair: %d", mtu)
			}
		})
	}
}

// A port that its pod has left counts as unplugged only once it is, and then rests.
func TestUsedPortIsUnpluggedLate(t *testing.T) {
	p := newPlugged(t)
	rec, _ := hold(t, p.Ports, "a")
	p.vswitch.set(true)
	p.opts.Rows.Resync()
	p.Release(rec)
	p.fails()
	if left, _ := p.stillPlugged([]attach.Record{rec}); !errors.Is(left[rec.Key()], reconcile.ErrUnavailable) {
		t.Errorf("still plugged: %v", left)
	}
	p.vswitch.set(false)
	step(t, p.Ports)
	if left, _ := p.stillPlugged([]attach.Record{rec}); len(left) != 0 || p.vswitch.deletions(p.far()) != 1 || p.port().released.IsZero() {
		t.Errorf("still plugged: %v, row deleted %d times, released at %v", left, p.vswitch.deletions(p.far()), p.port().released)
	}
}

// A port whose NeutronPort is deleted keeps its slot until nothing is left of it.
func TestDeletedPortIsUnpluggedLate(t *testing.T) {
	p := newPlugged(t)
	if err := p.api.Delete(t.Context(), p.port().object); err != nil {
		t.Fatal(err)
	}
	p.vswitch.set(true)
	p.opts.Rows.Resync()
	p.fails()
	if p.port() == nil || p.of[0] != p.key.Name {
		t.Fatalf("port %+v, slots %v", p.port(), p.of)
	}
	p.vswitch.set(false)
	step(t, p.Ports)
	if left := p.remains(); len(left) != 0 || len(p.all) != 0 || len(p.of) != 0 {
		t.Errorf("left: %v, ports %v, slots %v", left, p.all, p.of)
	}
}

// Of a port that was never plugged completely nothing is left when its NeutronPort is being deleted.
func TestHalfPluggedPortIsUnplugged(t *testing.T) {
	p := newPlugged(t)
	p.mtu(1400)
	p.vswitch.Refuse(p.far().Name, "no such bridge")
	p.fails() // it is unplugged, and cannot be plugged again
	alter(t, p.api, p.key, func(object *weftv1.NeutronPort) { object.Finalizers = []string{weftv1.NeutronPortFinalizer} })
	if err := p.api.Delete(t.Context(), p.port().object); err != nil {
		t.Fatal(err)
	}
	step(t, p.Ports)
	if left := p.remains(); len(left) != 0 || p.port().status(p.opts.Rows).Plugged {
		t.Errorf("left: %v, status %+v", left, p.port().status(p.opts.Rows))
	}
}

// A pod does not get a port whose object has changed since it was plugged, neither if it is chosen after the change nor before.
func TestOutdatedPortIsNotHandedOut(t *testing.T) {
	for name, change := range map[string]func(*weftv1.NeutronPortSpec){
		"MTU":     func(s *weftv1.NeutronPortSpec) { s.MTU = 1400 },
		"MAC":     func(s *weftv1.NeutronPortSpec) { s.MAC = "0a:58:0a:f4:00:06" },
		"network": func(s *weftv1.NeutronPortSpec) { s.Network.UID = "v" },
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlugged(t)
			early := chosenOf(p.Ports)
			alter(t, p.api, p.key, func(object *weftv1.NeutronPort) { change(&object.Spec) })
			if err := p.read(t.Context()); err != nil {
				t.Fatal(err)
			}
			for _, network := range []string{"u", "v"} {
				if chosen, _, _ := p.choose(network, func(string, *Spec) bool { return false }); chosen != nil {
					t.Errorf("chosen for network %s: %+v", network, chosen)
				}
			}
			rec := attached(t, "a", early)
			d, err := DetailsOf(&rec)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := p.Hold(&rec, &d); err == nil {
				t.Error("an attachment gets the port that it chose before the change")
			}
			step(t, p.Ports)
			if now := p.port(); !now.plugged || now.bound || !now.again || p.vswitch.deletions(p.far()) != 1 {
				t.Errorf("plugged %t, bound %t, again %t, row deleted %d times", now.plugged, now.bound, now.again, p.vswitch.deletions(p.far()))
			}
			if row, is := rowsOf(t, p.Ports)[p.far()].(*ovsdb.Port); !is || row.ExternalIDs["attached-mac"] != p.port().spec.MAC.String() {
				t.Errorf("row of br-int: %+v", row)
			}
		})
	}
}

// A pair that another program has deleted is built anew with its port: when a pod finds it missing, which then gets another port, and when
// the port cannot be plugged without it. No pod was on the port, and it need not rest.
func TestMissingPairIsBuiltAnew(t *testing.T) {
	name := host.Slot(0).Preplugged()
	for cause, find := range map[string]func(t *testing.T, p *plugged){
		"a pod finds it missing": func(t *testing.T, p *plugged) {
			t.Helper()
			rec, _ := hold(t, p.Ports, "a")
			d, err := DetailsOf(&rec)
			if err != nil {
				t.Fatal(err)
			}
			p.Replace(t.Context(), &rec, &d)
		},
		"the port cannot be plugged": func(t *testing.T, p *plugged) {
			t.Helper()
			p.vswitch.Refuse(name, "could not open network device")
			p.opts.Rows.Resync()
			p.port().plugged = false // as after a failed commit
			p.fails()
			p.vswitch.Refuse(name, "")
		},
	} {
		t.Run(cause, func(t *testing.T) {
			p := newPlugged(t)
			if err := p.links.Fake.Delete(t.Context(), name); err != nil {
				t.Fatal(err)
			}
			find(t, p)
			step(t, p.Ports)
			if now := p.port(); !pairsOf(t, p.links.Fake)[name].Idle || !now.plugged || now.bound || !now.again || !now.released.IsZero() {
				t.Errorf("pairs %v, plugged %t, bound %t, again %t, released at %v", pairsOf(t, p.links.Fake), now.plugged, now.bound, now.again, now.released)
			}
		})
	}
}

// A binding that was read before a port was unplugged is not that of the port as it is plugged now.
func TestFormerBindingIsIgnored(t *testing.T) {
	p := newPlugged(t)
	p.mtu(1400)
	step(t, p.Ports)
	p.mtu(1300) // before the port is bound again
	read, let, waits := make(chan struct{}), make(chan struct{}), make(chan struct{})
	calls := 0
	p.opts.AwaitBound = func(ctx context.Context, names, _ []string) ([]string, error) {
		if calls++; calls > 1 {
			close(waits)
			<-ctx.Done()
			return nil, ctx.Err()
		}
		close(read)
		<-let
		return names, nil
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { (&bindings{p.Ports}).follow(ctx); close(done) }()
	<-read
	step(t, p.Ports)
	close(let)
	select {
	case <-waits:
	case <-time.After(time.Minute):
		t.Error("the bindings are not read again")
	}
	cancel()
	<-done
	if p.port().bound {
		t.Error("the port counts as bound, and only its former rows were")
	}
}

// A link that cannot be deleted is reported, also beside another program's link.
func TestPairsAreDeletedAlone(t *testing.T) {
	links := &kept{podlink.NewFake(portSpace), map[string]error{"wp-1": link.ErrForeign, "wp-2": errLink}}
	m := pairs{links: links, path: portSpace}
	if _, err := m.create(t.Context(), []podlink.Preplugged{m.of(0, 0), m.of(1, 0), m.of(2, 0)}); err != nil {
		t.Fatal(err)
	}
	failed := m.delete(t.Context(), []string{"wp-0", "wp-1", "wp-2"})
	if len(failed) != 1 || !errors.Is(failed["wp-2"], errLink) {
		t.Errorf("failed: %v", failed)
	}
}

// The slots of ports that were deleted while no agent ran are free again.
func TestSlotsOfDeletedPorts(t *testing.T) {
	p := newPlugged(t)
	ps := New(Options{Node: "n1", Rows: p.opts.Rows, Objects: p.api, API: p.api})
	ps.former = map[string]host.Left{"000000020000": {Slot: 1}, host.Digits(p.key.Name): {Slot: 0}}
	if err := ps.read(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(ps.former) != 0 || ps.all[p.key.Name].slot != 0 {
		t.Errorf("kept for former ports: %v, slot %d", ps.former, ps.all[p.key.Name].slot)
	}
}
