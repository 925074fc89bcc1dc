package overlay

import (
	"testing"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/overlay/balancer"
	"weft.dev/weft/internal/overlay/egress"
	"weft.dev/weft/internal/overlay/feature"
	"weft.dev/weft/internal/overlay/firewalls"
	"weft.dev/weft/internal/overlay/projects"
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
