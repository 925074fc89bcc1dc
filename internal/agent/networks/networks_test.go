package networks

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/errgroup"
	"sigs.k8s.io/controller-runtime/pkg/client"

	weftv1 "weft.dev/weft/api/weft/v1"
	"weft.dev/weft/internal/agent/engines"
	"weft.dev/weft/internal/attach"
	netkind "weft.dev/weft/internal/network"
	"weft.dev/weft/internal/node"
	"weft.dev/weft/internal/placement"
	"weft.dev/weft/internal/steps"
)

// decidedKind is a network whose presence is known.
func decidedKind(name string, presence netkind.Presence) *kind {
	return &kind{Kind: netkind.Kind{Name: name}, presence: presence, known: true, why: "it is not running"}
}

// TestDefaultNetwork: the default is the network whose object says so; otherwise the overlay; otherwise the first that needs no binding.
func TestDefaultNetwork(t *testing.T) {
	const (
		absent = iota
		present
		chosen
	)
	presence := func(state int, cluster bool) netkind.Presence {
		return netkind.Presence{Present: state != absent, Default: state == chosen, Cluster: cluster, Why: "its object"}
	}
	for name, c := range map[string]struct {
		overlay, flat, bound int
		want                 string
	}{
		"nothing":                                  {absent, absent, absent, ""},
		"the overlay":                              {present, absent, absent, "overlay"},
		"the overlay before others":                {present, present, present, "overlay"},
		"the only one":                             {absent, present, absent, "flat"},
		"one that needs a binding":                 {absent, absent, present, ""},
		"the overlay's object requests it":         {present, chosen, present, "flat"},
		"also for a bound pod":                     {present, present, chosen, "bound"},
		"the overlay's object and another network": {chosen, chosen, absent, "overlay"},
	} {
		n := &Networks{
			home: presence(c.overlay, true), known: true,
			kinds: []*kind{decidedKind("flat", presence(c.flat, true)), decidedKind("bound", presence(c.bound, false))},
		}
		if have, reason := n.Default(); have != c.want || (reason == "") != (c.want == "") {
			t.Errorf("%s: %q (%s), want %q", name, have, reason, c.want)
		}
	}
}

// TestNothingIsPlacedBeforeAllIsKnown: no pod is placed while the presence of any network is unknown. Afterwards, pods for an absent
// network are refused with the reason.
func TestNothingIsPlacedBeforeAllIsKnown(t *testing.T) {
	flat := decidedKind("flat", netkind.Presence{Why: "there is no ConfigMap"})
	flat.why = "there is no ConfigMap"
	n := &Networks{home: netkind.Presence{Present: true, Cluster: true}, kinds: []*kind{flat}}
	if _, _, err := n.cluster(t.Context()); err == nil {
		t.Error("pods are placed before the overlay's objects are read")
	}
	n.known, flat.known = true, false
	if _, _, err := n.cluster(t.Context()); err == nil {
		t.Error("pods are placed before a network's objects are read")
	}
	flat.known = true
	cluster, serving, err := n.cluster(t.Context())
	if err != nil || serving != 1 {
		t.Fatalf("%d serve, %v", serving, err)
	}
	pod := placement.Pod{Namespace: "shop", Name: "web", Annotations: map[string]string{placement.AnnotationNetwork: "flat"}}
	if d := placement.Decide(pod, placement.Namespace{Name: "shop"}, cluster); !strings.Contains(d.Refuse, "there is no ConfigMap") {
		t.Errorf("decision %+v", d)
	}
	flat.presence.Present = true
	if err := n.Problems(); err == nil || !strings.Contains(err.Error(), "flat") {
		t.Errorf("problems: %v", err)
	}
}

// TestAbsentNetworkBinds: a pod that is bound to an absent network is refused, even if an annotation names another one. While the API
// server does not serve the network's objects, nothing is bound to it.
func TestAbsentNetworkBinds(t *testing.T) {
	bound := decidedKind("bound", netkind.Presence{Why: "there is no Vpc"})
	bound.why = "there is no Vpc"
	asked := 0
	bound.Bind = func(context.Context, client.Reader) (placement.Binder, error) {
		asked++
		return func(_ placement.Pod, namespace placement.Namespace) []placement.Binding {
			if namespace.Name != "shop" {
				return nil
			}
			return []placement.Binding{{Level: placement.ByNamespace, Network: "bound", Reason: "Subnet blue names namespace shop", Only: true}}
		}, nil
	}
	n := &Networks{home: netkind.Presence{Present: true, Cluster: true}, known: true, kinds: []*kind{bound}}
	decide := func(namespace string, annotations map[string]string) placement.Decision {
		t.Helper()
		cluster, serving, err := n.cluster(t.Context())
		if err != nil || serving != 1 {
			t.Fatalf("%d serve, %v", serving, err)
		}
		return placement.Decide(placement.Pod{Namespace: namespace, Name: "web", Annotations: annotations}, placement.Namespace{Name: namespace}, cluster)
	}
	if d := decide("shop", nil); d.Network != "overlay" || d.Refuse != "" || asked > 0 {
		t.Errorf("without the network's objects: %+v; bindings were asked for %d times", d, asked)
	}
	bound.watched = true
	if d := decide("shop", nil); d.Network != "bound" || !strings.Contains(d.Refuse, "there is no Vpc") {
		t.Errorf("bound to a network that is absent: %+v", d)
	}
	if d := decide("shop", map[string]string{placement.AnnotationNetwork: "overlay"}); !strings.Contains(d.Refuse, "Subnet blue names namespace shop") {
		t.Errorf("with an annotation that names another network: %+v", d)
	}
	if d := decide("other", nil); d.Network != "overlay" || d.Refuse != "" {
		t.Errorf("a pod that nothing binds: %+v", d)
	}
}

// The ports of tunnels that a network's objects configure are known, so that no pod gets one as a host port.
func TestTunnelPorts(t *testing.T) {
	configured := decidedKind("flat", netkind.Presence{})
	n := &Networks{kinds: []*kind{configured, decidedKind("bound", netkind.Presence{})}}
	if got := n.TunnelPorts(); len(got) > 0 {
		t.Errorf("without objects: %v", got)
	}
	configured.presence = netkind.Presence{Present: true, TunnelPorts: []uint16{8472}}
	if got := n.TunnelPorts(); !slices.Equal(got, []uint16{8472}) {
		t.Errorf("ports %v", got)
	}
}

// TestOnlyAChangeOfPresenceWakes: what depends on presence is brought in step when presence changes, not at each event of the objects.
func TestOnlyAChangeOfPresenceWakes(t *testing.T) {
	var now netkind.Presence
	var failure error
	k := &kind{Kind: netkind.Kind{Name: "bound", Present: func(context.Context, client.Reader) (netkind.Presence, error) { return now, failure }}}
	n := &Networks{changed: make(chan struct{}, 1), kinds: []*kind{k}}
	for _, step := range []struct {
		what     string
		presence netkind.Presence
		err      error
		wakes    bool
	}{
		{"the first look", netkind.Presence{Why: "there is no Vpc"}, nil, true},
		{"the same", netkind.Presence{Why: "there is no Vpc"}, nil, false},
		{"a Vpc", netkind.Presence{Present: true, Why: "there are Vpcs"}, nil, true},
		{"another Vpc", netkind.Presence{Present: true, Why: "there are Vpcs"}, nil, false},
		{"a failed read", netkind.Presence{}, context.DeadlineExceeded, false},
		{"a tunnel's port", netkind.Presence{Present: true, Why: "there are Vpcs", TunnelPorts: []uint16{8472}}, nil, true},
		{"the same port", netkind.Presence{Present: true, Why: "there are Vpcs", TunnelPorts: []uint16{8472}}, nil, false},
		{"no Vpc", netkind.Presence{Why: "there is no Vpc"}, nil, true},
	} {
		now, failure = step.presence, step.err
		if _, err := n.look(t.Context(), k); (err != nil) != (step.err != nil) {
			t.Errorf("%s: error %v, want %v", step.what, err, step.err)
		}
		woken := false
		select {
		case <-n.changed:
			woken = true
		default:
		}
		if woken != step.wakes {
			t.Errorf("%s: woken: %v, want %v", step.what, woken, step.wakes)
		}
	}
}

// TestPresenceWhileANetworkFailsToStart: events of the objects count while a network fails to start. One that is not configured any more is
// given up, and its presence is known.
func TestPresenceWhileANetworkFailsToStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, err := attach.Open(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = store.Close() }()
		now, tries := netkind.Presence{Present: true, Cluster: true, Why: "its object"}, 0
		k := &kind{wake: make(chan struct{}, 1)}
		k.Kind = netkind.Kind{
			Name:    "flat",
			Present: func(context.Context, client.Reader) (netkind.Presence, error) { return now, nil },
			New: func(context.Context, *node.Node, netkind.Deps) (netkind.Network, netkind.Runner, error) {
				if tries++; tries == 2 {
					now = netkind.Presence{Why: "there is no object"}
					steps.Wake(k.wake)
				}
				return nil, nil, errors.New("its object is invalid")
			},
		}
		n := &Networks{changed: make(chan struct{}, 1), kinds: []*kind{k}, options: Options{
			Store: store, Handler: noHandler{}, Log: slog.New(slog.DiscardHandler), Report: func(string) func(weftv1.NodeNetworkSection) { return nil },
		}}
		if _, err := n.look(t.Context(), k); err != nil {
			t.Fatal(err)
		}
		<-n.changed
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		at := Running{Engines: &engines.Engines{Kernel: &engines.Kernel{}, Switch: &engines.Switch{}}, Context: ctx, Group: &errgroup.Group{}}
		if err := n.serve(ctx, at, k); err != nil || ctx.Err() != nil {
			t.Errorf("after %d tries: %v, %v", tries, err, ctx.Err())
		}
		presence, running, why := k.state()
		if presence.Present || running || why == nil || why.Error() != "there is no object" {
			t.Errorf("presence %+v, running %v: %v", presence, running, why)
		}
		if name, _ := n.Default(); name != "" || len(n.changed) != 1 {
			t.Errorf("the default network is %q; woken: %d", name, len(n.changed))
		}
	})
}

type noHandler struct{}

func (noHandler) Serve(string, netkind.Network, <-chan struct{}) func() { return func() {} }

func (noHandler) Records(string) netkind.Records { return nil }
