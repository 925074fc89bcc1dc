package pipeline

import (
	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/reconcile"
)

// Rule is a flow with what it is for, in one line.
type Rule struct {
	Flow    *openflow.Flow
	Purpose string
}

// Fragment makes a fragment of rules.
func Fragment(rules []Rule) map[openflow.Key]openflow.Entry {
	fragment := make(map[openflow.Key]openflow.Entry, len(rules))
	for _, r := range rules {
		fragment[r.Flow.Key()] = r.Flow
	}
	return fragment
}

// program collects the rules of one owner.
type program struct {
	config *Config
	cookie uint64
	rules  []Rule
}

func (c *Config) program(owner reconcile.Owner) *program {
	return &program{config: c, cookie: Cookie(owner)}
}

// conditions is what a flow matches.
type conditions []openflow.MatchField

// match makes conditions readable where they are used.
func match(fields ...openflow.MatchField) conditions { return fields }

// add adds a flow.
func (p *program) add(table uint8, priority uint16, purpose string, on conditions, actions ...openflow.Action) {
	p.rules = append(p.rules, Rule{Purpose: purpose, Flow: &openflow.Flow{
		Table: table, Priority: priority, Cookie: p.cookie, Match: openflow.NewMatch(on...), Actions: actions,
	}})
}

// drop adds a flow that drops.
func (p *program) drop(table uint8, priority uint16, purpose string, on conditions) {
	p.add(table, priority, purpose, on)
}

// output adds a flow that outputs IP packets by its last action. With connection tracking, a connection that is new
// becomes known in the same list of actions, by a second flow one priority higher: all verdicts have been passed. One to a
// Service is known since its address was translated.
func (p *program) output(table uint8, priority uint16, purpose string, on conditions, actions ...openflow.Action) {
	p.add(table, priority, purpose, on, actions...)
	if !p.config.Conntrack {
		return
	}
	fresh := append(match(openflow.EthType(openflow.EthTypeIPv4), openflow.CTState(openflow.CTTrk|openflow.CTNew, openflow.CTRel|openflow.CTDNAT)), on...)
	commit := openflow.CT(openflow.CTAction{Commit: true, Zone: p.config.zone(), NAT: p.config.ownSource()})
	p.add(table, priority+1, purpose+"; the connection is new", fresh, append([]openflow.Action{commit}, actions...)...)
	if p.config.policies() {
		p.outputJudged(table, priority, purpose, on, actions)
	}
}

// toHost are the actions that hand a packet to the host.
func (c *Config) toHost() []openflow.Action {
	return []openflow.Action{openflow.SetField(openflow.EthDst(c.gatewayMAC())), openflow.Output(PortTun)}
}

// ownSource keeps a connection's source as it is, unless its answers would look like those of another connection: then the source gets
// another port. That is so of a pod that has reached an endpoint by a Service, and reaches it directly from the same port. (A source
// translation without a range, which the switch also takes for 0.0.0.0. Of connections to Services the tracker does so by itself.)
func (c *Config) ownSource() *openflow.NAT {
	if !c.KeepApart {
		return nil
	}
	return &openflow.NAT{Kind: openflow.NATSource}
}
