package overlay

import (
	"log/slog"
	"strings"
	"testing"

	"weft.dev/weft/internal/overlay/remotes"
	"weft.dev/weft/internal/overlay/settings"
)

// The error about a remote host names its object, and not the object's UID.
func TestRemoteHostsAreNamed(t *testing.T) {
	l := start(t)
	view := sample()
	view.Remotes = append(view.Remotes, subnet("overlaps", "192.0.2.9", "10.128.2.0/24"), subnet("own", "192.0.2.1", "10.128.6.0/23"))
	s, err := settings.New(view)
	if err != nil {
		t.Fatal(err)
	}
	l.hosts.Update(remotes.Config{Pipeline: &s.Pipeline, Host: &s.Host, Log: slog.New(slog.DiscardHandler)}, view.Remotes)
	for uid, want := range map[string]string{
		"uid-overlaps": "HostSubnet overlaps: subnet 10.128.2.0/24 overlaps 10.128.2.0/23 of HostSubnet b",
		"uid-own":      "HostSubnet own: host address 192.0.2.1 is this node's own",
	} {
		found := ""
		for owner, why := range l.hosts.LeftOut() {
			if strings.HasSuffix(string(owner), uid) {
				found = why
			}
		}
		if found != want {
			t.Errorf("%q, want %q", found, want)
		}
	}
}

// In the modes with egress firewalls, a node port at a gateway leads no pod out of the cluster, past the firewall that the switch checks.
func TestNodePortsAtGatewaysLeadNowhere(t *testing.T) {
	for name, c := range map[string]struct {
		view View
		want bool
	}{"flat": {sample(), false}, "VNIDs": {isolated(), true}, "NetworkPolicies": {policyView(), true}} {
		s, err := settings.New(c.view)
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for _, rules := range s.Rules() {
			for _, item := range rules {
				found = found || strings.Contains(item.String(), "ct original ip daddr @pods ip daddr != @pods reject")
			}
		}
		if found != c.want {
			t.Errorf("%s: the host rejects: %t, want %t", name, found, c.want)
		}
	}
}
