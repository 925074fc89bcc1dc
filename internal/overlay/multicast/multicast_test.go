package multicast_test

import (
	"errors"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/overlay/multicast"
	"weft.dev/weft/internal/overlay/pipeline"
	"weft.dev/weft/internal/reconcile"
)

// vnids returns the VNIDs in the flows of a namespace's pods; a moves from VNID 10 to 11.
func vnids(namespace string) (reached []uint32, sends uint32, has bool) {
	switch namespace {
	case "a":
		return []uint32{10, 11}, 10, true
	case "b":
		return []uint32{11, 11}, 11, true
	}
	return nil, 0, false
}

func view() *multicast.View {
	return &multicast.View{VNIDs: vnids, Config: &pipeline.Config{
		Mode: pipeline.ModeMultitenant, LocalSubnet: netip.MustParsePrefix("10.128.0.0/23"), Gateway: netip.MustParseAddr("10.128.0.1"),
	}}
}

func record(namespace, address string, ofport uint32) attach.Record {
	return attach.Record{
		ContainerID: address, IfName: "eth0", PodNamespace: namespace, OFPort: ofport,
		Addresses: []netip.Prefix{netip.PrefixFrom(netip.MustParseAddr(address), 23)},
	}
}

func owners(flows multicast.Flows) string {
	var all []string
	for o, flow := range flows {
		text := string(o)
		if len(flow) == 0 {
			text += " withdrawn"
		}
		all = append(all, text)
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

func want(t *testing.T, what string, flows multicast.Flows, want string) {
	t.Helper()
	if got := owners(flows); got != want {
		t.Errorf("%s: %q, want %q", what, got, want)
	}
}

// A pod of a moving namespace receives with both VNIDs and sends with one. A pod whose port is closed, or whose namespace has no VNID,
// takes no part. A port is in use until the lists without it are in effect.
func TestProjects(t *testing.T) {
	p, v := multicast.New(), view()
	a, b := record("a", "10.128.0.5", 5), record("b", "10.128.0.6", 6)
	closed, without := record("b", "10.130.0.7", 7), record("c", "10.128.0.8", 8)
	if differs, nodes := p.Take(&multicast.Change{Namespaces: map[string]*multicast.Namespace{
		"a": {VNID: 11, On: true}, "b": {VNID: 11, On: true}, "old": {VNID: 10, On: true}, "c": {VNID: 12, On: true},
	}}); !differs || !nodes {
		t.Errorf("differs %t, nodes %t", differs, nodes)
	}
	flows, changed := p.Place(v, a, b, closed, without)
	want(t, "placed", flows, "multicast/10, multicast/11")
	if len(changed) != 3 { // closed counts as well: it has no flows anyway
		t.Errorf("%d attachments change", len(changed))
	}
	if !p.Sends(v, &a) || p.Sends(v, &without) {
		t.Error("what sends is not what has a VNID")
	}
	flows, changed = p.Place(v, a, b)
	want(t, "again", flows, "")
	if len(changed) > 0 {
		t.Errorf("%d attachments change again", len(changed))
	}
	if names := p.Namespaces(11); !slices.Equal(names, []string{"a", "b"}) {
		t.Errorf("namespaces of VNID 11: %v", names)
	}
	want(t, "nodes", p.Nodes(v, map[reconcile.Owner]pipeline.Remote{"x": {Name: "x", NodeIP: netip.MustParseAddr("192.0.2.1")}}), "multicast/nodes")
	want(t, "a left", p.Leave(v, a.Key()), "multicast/10 withdrawn, multicast/11")
	refused := errors.New("refused")
	if err := p.Withdrawn([]attach.Key{a.Key()}, func(reconcile.Owner) error { return refused }); !errors.Is(err, refused) {
		t.Errorf("a list may have the port: %v", err)
	}
	if err := p.Withdrawn([]attach.Key{a.Key(), b.Key()}, func(reconcile.Owner) error { return nil }); err != nil {
		t.Error(err)
	}
	p.Take(&multicast.Change{Namespaces: map[string]*multicast.Namespace{"old": nil, "a": {VNID: 11}}})
	flows, changed = p.Place(v, b)
	want(t, "a namespace of the VNID disables it", flows, "multicast/11 withdrawn")
	if len(changed) != 1 {
		t.Errorf("%d attachments change", len(changed))
	}
	v.VNIDs = nil
	want(t, "a mode without VNIDs", p.Adapt(v, map[attach.Key]attach.Record{b.Key(): b}), "")
}

// What was handed over is pending until it is in effect.
func TestPending(t *testing.T) {
	p := multicast.New()
	p.Await([]reconcile.Owner{"x", "y"})
	first := p.Pending()
	p.Await([]reconcile.Owner{"y"}) // its flows change again, before the first ones are in effect
	p.InEffect(first)
	if pending := slices.Collect(maps.Keys(p.Pending())); !slices.Equal(pending, []reconcile.Owner{"y"}) {
		t.Errorf("pending %v", pending)
	}
	p.Await([]reconcile.Owner{"z"})
	p.InEffect(p.Pending())
	if pending := p.Pending(); len(pending) > 0 {
		t.Errorf("pending %v", pending)
	}
}
