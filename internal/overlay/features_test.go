package overlay

import (
	"context"

	"weft.dev/weft/internal/overlay/balancer"
	"weft.dev/weft/internal/overlay/egress"
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

func (l *life) UpdateFirewalls(ctx context.Context, change FirewallChange) error {
	return l.Firewalls.Update(ctx, change)
}

func (l *life) UpdateEgressIPs(ctx context.Context, e EgressIPs) error {
	return l.EgressIPs.Update(ctx, e)
}

func (l *life) UpdateServices(ctx context.Context, change ServiceChange) error {
	return l.Services.Update(ctx, change)
}

func (l *life) UpdateTenants(ctx context.Context, change TenantChange) error {
	return l.Projects.Update(ctx, change)
}

func (l *life) TenantsRealised() uint64 { return l.Projects.Realised() }

func (l *life) TenantsPending() bool { return l.Projects.Pending() }
