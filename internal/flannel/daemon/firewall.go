package daemon

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"weft.dev/weft/internal/nft"
	"weft.dev/weft/internal/nft/ruleset"
	"weft.dev/weft/internal/reconcile"
)

const (
	// firewallOwner owns the rules in other programs' chains. They fail separately: such a chain may be removed at any time.
	firewallOwner reconcile.Owner = "firewall"
	// firewallRest is the minimum time between two surveys of other programs' chains: kube-proxy may write its chains every second.
	firewallRest = time.Second
)

// firewall keeps other programs' chains open for packets forwarded from and to the network, as flanneld's iptables rules do.
type firewall struct {
	engine *ruleset.Engine
	loop   *reconcile.Loop[nft.Key, nft.Item]
	log    *slog.Logger

	traffic  []nft.Traffic
	survey   *nft.Survey // nil: not known
	warnings []string
}

// Traffic returns the kinds of traffic of packets forwarded from and to networks.
func Traffic(networks ...netip.Prefix) []nft.Traffic {
	var out []nft.Traffic
	for _, network := range networks {
		if !network.IsValid() {
			continue
		}
		family := nft.FamilyIPv6
		if network.Addr().Is4() {
			family = nft.FamilyIPv4
		}
		out = append(out, nft.Traffic{Family: family, Hook: nft.HookForward, Source: network},
			nft.Traffic{Family: family, Hook: nft.HookForward, Destination: network})
	}
	return out
}

// look surveys other programs' chains, and opens those that drop all forwarded packets. A failed look is repeated at the next check.
func (f *firewall) look(ctx context.Context) {
	survey, err := f.engine.Survey(ctx, f.traffic...)
	if err != nil {
		if ctx.Err() == nil {
			f.log.Warn("looking at other programs' nftables chains failed; trying again", "error", err)
		}
		f.survey = nil
		return
	}
	jumps, warnings := nft.Open(survey.Drops, jumpOwner, "")
	f.loop.Set(map[reconcile.Owner]map[nft.Key]nft.Item{firewallOwner: jumps})
	if !slices.Equal(warnings, f.warnings) {
		for _, warning := range warnings {
			f.log.Warn("pods' packets are dropped by other rules of this node", "rule", warning)
		}
	}
	f.survey, f.warnings = survey, warnings
}

// concerned reports whether a drift may change the result of a look.
func (f *firewall) concerned(drift *nft.Drift) bool {
	return len(f.traffic) > 0 && (f.survey == nil || f.survey.Concerns(drift))
}

// soon returns the timer for the next look after a drift: one for all changes within firewallRest.
func (f *firewall) soon(look <-chan time.Time, drift *nft.Drift) <-chan time.Time {
	if look == nil && f.concerned(drift) {
		return time.After(firewallRest)
	}
	return look
}

// jumpOwner is the owner in the comments of the rules.
const jumpOwner = "flannel"
