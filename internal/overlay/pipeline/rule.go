package pipeline

import (
	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/openflow/action"
	"weft.dev/weft/internal/openflow/oxm"
	"weft.dev/weft/internal/overlay/pipeline/cookies"
	"weft.dev/weft/internal/overlay/pipeline/layout"
	"weft.dev/weft/internal/reconcile"
)

// Owners of the fragments that belong to no object.
const (
	// OwnerCluster owns the flows of Static.
	OwnerCluster reconcile.Owner = "cluster"
	// OwnerState owns the note with the state's hash.
	OwnerState reconcile.Owner = "state"
	// OwnerNodes owns the flows of Nodes.
	OwnerNodes reconcile.Owner = "nodes"
	// OwnerTargets owns the flows of Targets.
	OwnerTargets reconcile.Owner = "targets"
)

// program collects the rules of one owner.
type program struct {
	openflow.Rules
	config *Config
}

func (c *Config) program(owner reconcile.Owner) *program {
	return &program{openflow.Rules{Cookie: cookies.Of(owner)}, c}
}

// conditions is what a flow matches.
type conditions []oxm.MatchField

// match makes conditions readable where they are used.
func match(fields ...oxm.MatchField) conditions { return fields }

// drop adds a flow that drops.
func (p *program) drop(table uint8, priority uint16, purpose string, on conditions) {
	p.Add(table, priority, purpose, on)
}

// output adds a flow that outputs IP packets by its last action. With connection tracking, a second flow one priority higher commits a new
// connection in the same list of actions: all verdicts have been reached by then. A connection to a Service is committed already, when its
// address is translated.
func (p *program) output(table uint8, priority uint16, purpose string, on conditions, actions ...action.Action) {
	p.Add(table, priority, purpose, on, actions...)
	if !p.config.Conntrack {
		return
	}
	fresh := append(match(oxm.EthType(oxm.EthTypeIPv4), oxm.CTState(oxm.CTTrk|oxm.CTNew, oxm.CTRel|oxm.CTDNAT)), on...)
	commit := action.CT(action.CTAction{Commit: true, Zone: p.config.zone(), NAT: p.config.ownSource()})
	p.Add(table, priority+1, purpose+"; the connection is new", fresh, append([]action.Action{commit}, actions...)...)
	if p.config.policies() {
		policyTables{p}.outputJudged(table, priority, purpose, on, actions)
	}
}

// toHost returns the actions that output a packet to the host.
func (c *Config) toHost() []action.Action {
	return []action.Action{action.SetField(oxm.EthDst(c.gatewayMAC())), action.Output(layout.PortTun)}
}

// ownSource keeps a connection's source, unless its replies would look like those of another connection: then the source gets another port.
// That happens if a pod has reached an endpoint by a Service and reaches it directly from the same port. (It is source NAT without a range,
// which the switch also uses for 0.0.0.0. For connections to Services conntrack does this by itself.)
func (c *Config) ownSource() *action.NAT {
	if !c.KeepApart {
		return nil
	}
	return &action.NAT{Kind: action.NATSource}
}

func source(vnid uint32) action.Action {
	return action.SetField(oxm.Reg(layout.RegSource, vnid))
}

// sourceToTunnel copies the source VNID to the VNI.
func sourceToTunnel() action.Action {
	const last = 31
	return action.Move(oxm.RegBits(layout.RegSource, 0, last), oxm.Bits(oxm.FieldTunID, 0, last))
}
