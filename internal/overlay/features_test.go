package overlay

import (
	"context"
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
	"weft.dev/weft/internal/overlay/projects"
	"weft.dev/weft/internal/service"
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
			return l.Services.Update(ctx, one(svc("dns", "172.30.0.11", service.KindClusterIP, service.UDP, "10.128.0.5:53")))
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
