package pipeline

import (
	"slices"

	"weft.dev/weft/internal/openflow/action"
	"weft.dev/weft/internal/openflow/oxm"
	"weft.dev/weft/internal/overlay/pipeline/layout"
)

// ModeMultitenant isolates pods of namespaces with different VNIDs from each other. Pods with VNID 0 reach all pods and are reached by all.
const ModeMultitenant Mode = "multitenant"

// isolates reports whether VNIDs isolate pods.
func (c *Config) isolates() bool { return c.Mode == ModeMultitenant }

// hasVNIDs reports whether packets carry the VNIDs of their senders. With NetworkPolicies they do too, because other implementations of the
// network decide by them. In a flat network the VNID is 0.
func (c *Config) hasVNIDs() bool { return c.isolates() || c.policies() }

// sourceFromTunnel sets the source VNID of a known node's packets: the VNI, for which that node is trusted. In a flat network it is 0,
// whatever the VNI.
func (c *Config) sourceFromTunnel() action.Action {
	const last = 31
	if c.hasVNIDs() {
		return action.Move(oxm.Bits(oxm.FieldTunID, 0, last), oxm.RegBits(layout.RegSource, 0, last))
	}
	return source(0)
}

// isolation adds what decides by VNIDs for all pods. Which further senders may reach a pod is in the pod's own flows (admit).
func (p *program) isolation(out action.Action) {
	const all = 200
	if !p.config.isolates() {
		p.output(layout.TableIngress, all, "a flat network has no isolation", nil, out)
		return
	}
	p.output(layout.TableIngress, all, "from hosts, from outside, and from global projects", match(oxm.Reg(layout.RegSource, 0)), out)
}

// admit admits a pod's own project, and all senders if the project is global. The verdict needs no connection state: it is the same for
// both directions of a connection, and is reached for each packet. So a connection ends when the permission is removed.
func (p *program) admit(pod *Pod) {
	const priority = 100
	if !p.config.isolates() {
		return
	}
	to, out := oxm.Reg(layout.RegPort, pod.OFPort), action.Output(pod.OFPort)
	senders := append([]uint32{pod.VNID}, pod.Admits...)
	slices.Sort(senders)
	if senders[0] == 0 {
		p.output(layout.TableIngress, priority, "to a global project, from all", match(to), out)
		return
	}
	for _, vnid := range slices.Compact(senders) {
		purpose := "from the pod's own project"
		if vnid != pod.VNID {
			purpose = "from a VNID that the project changes from or to"
		}
		p.output(layout.TableIngress, priority, purpose, match(oxm.Reg(layout.RegSource, vnid), to), out)
	}
}

// hostServices is for packets to the Services' network that no table serves. The host does not pass on the sender: packets that it forwards
// come from the gateway, which reaches all pods, and go where no egress firewall and no policy sees them. So only packets of pods that
// nothing restricts get there, and of those only packets to Services that the switch leaves to the host (HostRules). A Service that the switch
// does not have yet is refused: a connection that the host begins stays with the host, and its endpoint sees the node as the client.
func (p *program) hostServices() {
	const all, judged = 200, 215
	c := p.config
	if !c.isolates() && (Firewalls{c}).on() {
		p.handOver(judged, "to Services that the switch does not serve, from pods isolated for egress: no policy would see the endpoint, and the host rejects",
			match(oxm.EthType(oxm.EthTypeIPv4), flag(layout.FlagEgress)), c.toReject()...)
	}
	trusted, whose := c.trusted()
	if !c.Conntrack {
		p.output(layout.TableHost, priorityTrusted, "to Services, which the host serves"+whose, trusted, c.toHost()...)
	} else {
		p.handOver(priorityTrusted, "fragments, which show no ports: the host finds the Service"+whose,
			append(slices.Clip(trusted), match(oxm.EthType(oxm.EthTypeIPv4), oxm.IPFrag(oxm.FragYes))...), c.toHost()...)
	}
	if c.policies() {
		policyTables{p}.datagrams(trusted, whose)
	}
	p.handOver(all, "to Services that the switch does not serve: the host rejects", nil, c.toReject()...)
}

// handOver adds a flow of TableHost that hands packets to the host. With policies, a new connection is committed, so that the host's reply
// reaches a pod that a policy isolates. In the other modes the host's replies are not tracked: an entry would keep the client's port from a
// Service's first endpoint, and end a TCP connection that sends more than conntrack expects without a reply.
func (p *program) handOver(priority uint16, purpose string, on conditions, actions ...action.Action) {
	if p.config.policies() {
		p.output(layout.TableHost, priority, purpose, on, actions...)
		return
	}
	p.Add(layout.TableHost, priority, purpose, on, actions...)
}

// priorityTrusted is the priority in table 60 of what the host serves.
const priorityTrusted = 210

// trusted matches the packets in table 60 that the host may serve: those of pods without any restriction. whose describes these pods, for a
// flow's purpose.
func (c *Config) trusted() (on conditions, whose string) {
	unguarded := oxm.Reg(layout.RegFirewall, 0)
	switch {
	case c.isolates():
		return match(oxm.Reg(layout.RegSource, 0), unguarded), ", from global projects"
	case (Firewalls{c}).on():
		return match(unguarded), ", from pods without an egress firewall"
	default:
		return nil, ""
	}
}

// toReject returns the actions that send a packet to the host to be rejected.
func (c *Config) toReject() []action.Action {
	return append([]action.Action{action.SetField(oxm.EthSrc(RejectMAC()))}, c.toHost()...)
}
