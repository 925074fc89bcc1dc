package plan

import (
	"fmt"
	"slices"
	"strings"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/internal/clusternetwork"
	"weft.dev/weft/internal/egressfirewall"
)

// FirewallState is everything that determines whether EgressNetworkPolicies can be used.
type FirewallState struct {
	// Mode is the kind of isolation.
	Mode clusternetwork.Mode
	// Policies are all EgressNetworkPolicies. They are not modified.
	Policies []networkv1.EgressNetworkPolicy
	// NetNamespaces are all NetNamespaces.
	NetNamespaces []networkv1.NetNamespace
}

// FirewallFinding is the content of a policy's condition Valid.
type FirewallFinding struct {
	// Policy points into FirewallState.Policies.
	Policy *networkv1.EgressNetworkPolicy
	// Reason is a reason of package v1, ReasonValid if there is no problem.
	Reason string
	// Message says what is wrong and its effect, or what the condition does not cover.
	Message string
}

// Firewalls checks all policies, and returns the findings in their order.
func Firewalls(state FirewallState) []FirewallFinding {
	x := egressfirewall.NewIndex()
	warnings := make([][]string, len(state.Policies))
	for i := range state.Policies {
		parsed := egressfirewall.FromObject(&state.Policies[i])
		x.SetPolicy(parsed)
		warnings[i] = parsed.Warnings
	}
	for i := range state.NetNamespaces {
		x.SetVNID(state.NetNamespaces[i].Name, state.NetNamespaces[i].NetID)
	}
	findings := make([]FirewallFinding, 0, len(state.Policies))
	for i := range state.Policies {
		p := &state.Policies[i]
		found := FirewallFinding{Policy: p, Reason: networkv1.ReasonValid}
		validity, why := x.Validity(egressfirewall.Key{Namespace: p.Namespace, Name: p.Name})
		switch {
		case validity == egressfirewall.Unusable && state.Mode.HasVNIDs():
			found.Reason, found.Message = networkv1.ReasonInvalid, "nothing leaves the namespace: "+why
		case validity == egressfirewall.Unusable:
			found.Reason, found.Message = networkv1.ReasonInvalid, why
		case !state.Mode.HasVNIDs():
			found.Reason = networkv1.ReasonNoEffect
			found.Message = fmt.Sprintf("egress firewalls need a network with VNIDs: set pluginName of ClusterNetwork default to %s or %s", networkv1.PluginMultitenant, networkv1.PluginNetworkPolicy)
		case validity == egressfirewall.Global:
			found.Reason, found.Message = networkv1.ReasonNoEffect, why
		case validity != egressfirewall.InEffect:
			found.Reason, found.Message = networkv1.ReasonConflict, why
		case slices.ContainsFunc(p.Spec.Egress, func(r networkv1.EgressNetworkPolicyRule) bool { return r.To.DNSName != "" }):
			found.Message = "each node resolves its names: events report names that a node cannot resolve or has no room for"
		}
		if found.Reason == networkv1.ReasonValid && len(warnings[i]) > 0 {
			found.Message = strings.Join(slices.DeleteFunc(append(slices.Clone(warnings[i]), found.Message), func(s string) bool { return s == "" }), "; ")
		}
		findings = append(findings, found)
	}
	return findings
}
