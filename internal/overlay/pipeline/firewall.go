package pipeline

import (
	"fmt"
	"slices"

	"weft.dev/weft/internal/egressfirewall"
	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/openflow/action"
	"weft.dev/weft/internal/openflow/oxm"
	"weft.dev/weft/internal/overlay/pipeline/layout"
	"weft.dev/weft/internal/reconcile"
)

// Firewalls compiles the flows of namespaces' egress firewalls.
type Firewalls struct{ *Config }

// on reports whether namespaces have egress firewalls. In a flat network they have none, as in OpenShift SDN.
func (c Firewalls) on() bool { return c.isolates() || c.policies() }

// FirewallOwner returns the owner of the flows of a namespace's egress firewall.
func FirewallOwner(namespace string) reconcile.Owner {
	return reconcile.Owner("egressfirewall/" + namespace)
}

// firewallStatic adds the flows for egress firewalls that do not depend on their rules. A packet carries the number of its sender's
// firewall: without its rules, a firewall lets nothing out.
func (p *program) firewallStatic() {
	const none = 1
	c := p.config
	if !(Firewalls{c}).on() {
		p.Add(layout.TableEgressFirewall, priorityDefault, "no firewall", nil, action.GotoTable(layout.TableEgressRoute))
		return
	}
	p.Add(layout.TableEgressFirewall, none, "no firewall", match(oxm.Reg(layout.RegFirewall, 0)), action.GotoTable(layout.TableEgressRoute))
	p.drop(layout.TableEgressFirewall, priorityDefault, "an egress firewall whose rules are missing", nil)
}

// Flows returns the flows of a namespace's egress firewall. number is Pod.Firewall in the flows of its pods. Without these flows,
// nothing leaves. Flat networks have none.
func (c Firewalls) Flows(namespace string, number uint32, f *egressfirewall.Firewall) map[openflow.Key]openflow.Entry {
	return openflow.Fragment(c.Rules(namespace, number, f))
}

// Rules is Flows with the purpose of each flow. The longer a range, the higher its priority. So the switch finds the same entry
// as egressfirewall.Firewall, and a change of one entry is a change of one flow.
func (c Firewalls) Rules(namespace string, number uint32, f *egressfirewall.Firewall) []openflow.Rule {
	const priority = 100
	if !c.on() || f == nil || number == 0 {
		return nil
	}
	p := c.program(FirewallOwner(namespace))
	of := match(oxm.EthType(oxm.EthTypeIPv4), oxm.Reg(layout.RegFirewall, number))
	if f.Closed != "" {
		p.drop(layout.TableEgressFirewall, priority, "nothing leaves: "+f.Closed, of)
		return p.List
	}
	for _, e := range f.Entries {
		on := of
		if e.To.Bits() > 0 {
			on = append(slices.Clip(of), oxm.IPDst(e.To))
		}
		at := uint16(priority + e.To.Bits()) //nolint:gosec // 0 to 32
		if e.Verdict == egressfirewall.Allow {
			p.Add(layout.TableEgressFirewall, at, firewallPurpose(e), on, action.GotoTable(layout.TableEgressRoute))
		} else {
			p.drop(layout.TableEgressFirewall, at, firewallPurpose(e), on)
		}
	}
	return p.List
}

// firewallPurpose returns the rule that a flow comes from.
func firewallPurpose(e egressfirewall.Entry) string {
	switch {
	case e.Rule == egressfirewall.NoRule:
		return "no rule matches: allowed"
	case e.Unknown:
		return fmt.Sprintf("egress[%d] denies %s, of which no address is known: all are denied", e.Rule, e.Name)
	case e.Name != "":
		return fmt.Sprintf("egress[%d]: %s %s", e.Rule, e.Verdict, e.Name)
	default:
		return fmt.Sprintf("egress[%d]: %s", e.Rule, e.Verdict)
	}
}
