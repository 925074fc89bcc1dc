package overlay

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/egressfirewall"
	"weft.dev/weft/internal/overlay/balancer"
	"weft.dev/weft/internal/overlay/egress"
	"weft.dev/weft/internal/overlay/feature"
	"weft.dev/weft/internal/overlay/firewalls"
	"weft.dev/weft/internal/overlay/multicast"
	"weft.dev/weft/internal/overlay/pipeline"
	"weft.dev/weft/internal/overlay/projects"
	"weft.dev/weft/internal/service"
	"weft.dev/weft/internal/transport"
)

// The values of features, as the tests name them.
type (
	FirewallChange = firewalls.Change
	EgressIPs      = egress.IPs
	EgressWay      = egress.Way
	Uplink         = egress.Uplink
	ServiceChange  = balancer.Change
	Service        = balancer.Service
	TenantChange   = projects.Change
)

// The settings are replaced after a feature has changed its state. An ADD takes unchanged settings as proof that its flows are current, so
// flows compiled before the change must have been compiled with the former settings.
func TestFeaturesChangeBeforeSettings(t *testing.T) {
	l := start(t)
	was := l.pods.settings.Load()
	changer{l.Network}.Change(func(feature.View) (feature.Flows, []attach.Record) {
		if l.pods.settings.Load() != was {
			t.Error("the settings are replaced before the feature changes")
		}
		return nil, nil
	})
	if l.pods.settings.Load() == was {
		t.Error("the settings are not replaced: an ADD under way keeps the former flows")
	}
}

// While one feature waits for the switch, others are updated: an egress IP that fails over does not wait for the flows of a Service.
func TestFeaturesDoNotWaitForEachOther(t *testing.T) {
	for name, update := range map[string]func(ctx context.Context, l *life) error{
		"firewalls": func(ctx context.Context, l *life) error {
			return l.Firewalls.Update(ctx, FirewallChange{Firewalls: map[string]*egressfirewall.Firewall{"a": denying("192.0.2.0/24")}})
		},
		"multicast": func(ctx context.Context, l *life) error {
			return l.Multicast.Update(ctx, multicast.Change{Namespaces: map[string]*multicast.Namespace{"a": {VNID: 10, On: true}}})
		},
		"Services": func(ctx context.Context, l *life) error {
			return l.Services.Update(ctx, one(svc("dns", "172.30.0.11", service.KindClusterIP, transport.UDP, "10.128.0.5:53")))
		},
		"egress IPs": func(ctx context.Context, l *life) error { return l.EgressIPs.Update(ctx, leavesElsewhere(10, nodeB)) },
		"View": func(ctx context.Context, l *life) error {
			view := isolated()
			view.Cluster.VXLANPort = 4790
			return l.Update(ctx, view)
		},
		"projects": func(ctx context.Context, l *life) error { return l.Projects.Update(ctx, vnids("a", 12)) },
	} {
		t.Run(name, func(t *testing.T) {
			l := isolate(t, newNode(t.TempDir()), vnids("a", 10))
			l.add(t, l.of("a", "one"))
			waits, end := make(chan struct{}), make(chan struct{})
			release := sync.OnceFunc(func() { close(end) })
			defer release()
			first := sync.OnceFunc(func() { close(waits) })
			l.node.flowEngine.before(func() { first(); <-end })
			updated := make(chan error, 1)
			go func() { updated <- update(t.Context(), l) }()
			<-waits
			other := make(chan struct{})
			go func() {
				changer{l.Network}.Begin()()
				close(other)
			}()
			select {
			case <-other:
			case <-time.After(patient):
				t.Error("another feature cannot be updated")
			}
			if len(updated) > 0 {
				t.Error("flows that the switch does not have are reported as in effect")
			}
			release()
			if err := <-updated; err != nil {
				t.Error(err)
			}
		})
	}
}

// Features that change while the network starts are in effect once it has started.
func TestFeaturesChangeDuringStart(t *testing.T) {
	n := newNode(t.TempDir())
	n.uplink = &uplink{}
	former := isolate(t, n, vnids("a", 10, "b", 11))
	req := former.of("a", "s1")
	former.add(t, req)
	former.add(t, former.of("b", "s2"))
	former.stop()
	l := n.begin(t)
	t.Cleanup(l.stop)
	l.tenancy(t, vnids("a", 10, "b", 11))
	l.leaves(t, leavesElsewhere(10, nodeB))
	rows, release := hanging(t, n.rowEngine)
	started := make(chan error, 1)
	go func() { started <- l.Update(t.Context(), otherPort()) }()
	<-rows
	l.tenancy(t, vnids("a", 12))
	l.leaves(t, heldHere(12))
	l.guard(t, map[string]*egressfirewall.Firewall{"b": denying("192.0.2.0/24")})
	owner, web := svc("web", "172.30.0.10", service.KindClusterIP, transport.TCP, "10.128.0.5:80")
	l.services(t, one(owner, web))
	l.sings(t, "a 12 on")
	release()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	l.wantWays(t, "here", "by the node")
	if got := l.vnidsOf(t, req); !strings.HasPrefix(got, "sends 0xc ") {
		t.Errorf("the pod %s", got)
	}
	if got := l.choir(t); got != "12: >s1 s1>" {
		t.Errorf("multicast: %s", got)
	}
	if l.ranges(t) == 0 || len(l.held(t, owner)) == 0 || len(l.held(t, pipeline.EgressOwner(10))) > 0 {
		t.Error("the firewall or the Service is missing, or the former group is left")
	}
	if failures := l.engines.Flows.Failures(); len(failures) > 0 {
		t.Error(failures)
	}
}

// While pods are closed between two isolating modes, no feature and no ADD opens one.
func TestPodsStayClosedBetweenModes(t *testing.T) {
	l, _ := egressLife(t)
	req := l.of("a", "s1")
	closed := func(what string) {
		t.Helper()
		if got := l.opens(t, req); got != "closed" {
			t.Errorf("%s: the port is %s", what, got)
		}
	}
	if err := l.pods.close(t.Context()); err != nil {
		t.Fatal(err)
	}
	l.tenancy(t, vnids("a", 12))
	closed("after a change of VNIDs")
	l.guard(t, map[string]*egressfirewall.Firewall{"a": denying("192.0.2.0/24")})
	closed("after a change of firewalls")
	l.leaves(t, heldHere(10))
	closed("after a change of egress IPs")
	rec := l.record(t, req)
	if err := l.programFlows(t.Context(), l.pods.settings.Load(), &rec); err != nil {
		t.Error(err)
	}
	closed("after an ADD")
	l.pods.handOver(l.pods.settings.Load())
	if err := l.engines.Flows.Apply(t.Context(), nil); err != nil {
		t.Error(err)
	}
	l.wantWays(t, "here", "by the node")
}

// An ADD that compiled its pod's flows before a feature changed does not replace those that the feature has handed over.
func TestADDUnderWayUndoesNoChange(t *testing.T) {
	l, _ := egressLife(t)
	req := l.of("a", "s1")
	rec, was := l.record(t, req), l.pods.settings.Load()
	l.leaves(t, heldHere(10))
	commits := l.node.commits()
	if err := l.programFlows(t.Context(), was, &rec); err != nil {
		t.Error(err)
	}
	if got := l.node.commits(); got != commits {
		t.Errorf("flows of former settings were committed: %v, before %v", got, commits)
	}
}
