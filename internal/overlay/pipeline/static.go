package pipeline

import (
	"net"
	"net/netip"
	"slices"

	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/openflow/action"
	"weft.dev/weft/internal/openflow/oxm"
	"weft.dev/weft/internal/overlay/pipeline/layout"
)

// Protocol numbers that tables 20 and 30 match.
const (
	icmpRedirect     = 5  // RFC 792
	dhcpServer       = 67 // RFC 2131
	dhcpClient       = 68
	priorityDefault  = 0
	priorityForbid   = 300
	priorityHostward = 300
	priorityNonsense = 400
)

// Static returns the flows that depend neither on pods nor on other nodes. Their owner is OwnerCluster.
func (c *Config) Static() map[openflow.Key]openflow.Entry { return openflow.Fragment(c.StaticRules()) }

// StaticRules is Static with the purpose of each flow.
func (c *Config) StaticRules() []openflow.Rule {
	p := c.program(OwnerCluster)
	p.classify()
	p.classifyHost()
	p.fromPods()
	p.state()
	p.route()
	p.routeNonsense()
	p.deliver()
	p.leave()
	egressTables{p}.egressStatic()
	for _, t := range layout.Tables() {
		switch t.Number {
		case layout.TableState, layout.TableNode, layout.TableAffinity, layout.TableService, layout.TableEndpoint, layout.TableEgressPolicy, layout.TableExternal, layout.TableEgressFirewall, layout.TableEgressRoute, layout.TableNote:
			// These pass on everything else, or see no packets.
		case layout.TableDeliver:
			// It gets only packets that it delivers.
		default:
			p.drop(t.Number, priorityDefault, "nothing else passes", nil)
		}
	}
	return p.List
}

func (p *program) classify() {
	const priority, ports, pods = 1000, 200, 100
	p.drop(layout.TableClassify, priority, "VLAN tags, single and double, are not allowed", match(oxm.VLANAny()))
	reserved := net.HardwareAddr{0x01, 0x80, 0xc2, 0, 0, 0}
	mask := net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xf0}
	p.drop(layout.TableClassify, priority, "protocols between switches (STP, LLDP, pause) are not allowed", match(oxm.EthDstMasked(reserved, mask)))
	p.Add(layout.TableClassify, ports, "from the tunnel", match(oxm.InPort(layout.PortVXLAN)), action.GotoTable(layout.TableTunnel))
	p.drop(layout.TableClassify, ports, "nothing else from the host", match(oxm.InPort(layout.PortTun)))
	p.Add(layout.TableClassify, pods, "ARP from pods", match(oxm.ARP()), action.GotoTable(layout.TablePod))
	p.Add(layout.TableClassify, pods, "IPv4 from pods", match(oxm.EthType(oxm.EthTypeIPv4)), action.GotoTable(layout.TablePod))
}

// classifyHost admits packets of the host. The host is trusted, but sends no packet with a pod's address: packets that it forwards between
// pods are masqueraded to the gateway.
func (p *program) classifyHost() {
	const forbidden, own, pods, others = 450, 400, 350, 300
	c, tun := p.config, oxm.InPort(layout.PortTun)
	p.drop(layout.TableClassify, forbidden, "ICMP redirects of the host: Services pass tun0 both ways", match(tun, oxm.ICMPType(icmpRedirect)))
	p.drop(layout.TableClassify, forbidden, "the host sends and receives no multicast", match(tun, oxm.IPDst(multicast4())))
	enter := []action.Action{source(0), action.GotoTable(layout.TableState)}
	if c.Conntrack {
		// On the kernel datapath, packets arrive with the state of the host's own conntrack, which is of another zone.
		enter = slices.Insert(enter, 0, action.CTClear())
	}
	p.Add(layout.TableClassify, own, "from the host's own address, to pods anywhere", match(tun, oxm.IPSrc(host(c.Gateway))), enter...)
	for _, network := range c.ClusterNetworks {
		p.drop(layout.TableClassify, pods, "the host does not send as a pod", match(tun, oxm.IPSrc(network)))
	}
	p.Add(layout.TableClassify, others, "through the host to local pods: from outside, from Services, from the node's other addresses",
		match(tun, oxm.IPDst(c.LocalSubnet)), enter...)
	p.Add(layout.TableClassify, others, "ARP from the host, whose sender address may be any of the host's",
		match(tun, oxm.ARP(), oxm.ARPSHA(c.gatewayMAC())),
		action.SetField(oxm.ARPSPA(host(c.Gateway))), source(0), action.GotoTable(layout.TableRoute))
}

func (p *program) fromPods() {
	ipv4 := oxm.EthType(oxm.EthTypeIPv4)
	p.drop(layout.TablePod, priorityForbid, "pods may not send as DHCP servers", match(ipv4, oxm.UDPSrc(dhcpServer), oxm.UDPDst(dhcpClient)))
	p.drop(layout.TablePod, priorityForbid, "pods may not send ICMP redirects", match(oxm.ICMPType(icmpRedirect)))
}

func (p *program) state() {
	p.Add(layout.TableState, priorityPassOn, "from the tunnel: checked by the sender's node", match(oxm.InPort(layout.PortVXLAN)), action.GotoTable(layout.TableRoute))
	p.Add(layout.TableState, priorityPassOn, "from the host", match(oxm.InPort(layout.PortTun)), action.GotoTable(layout.TableRoute))
	p.Add(layout.TableService, priorityDefault, "no Service of the switch", nil, action.GotoTable(layout.TableEgressPolicy))
	p.Add(layout.TableEgressPolicy, priorityDefault, "the sender is not isolated", nil, action.GotoTable(layout.TableRoute))
	if !p.config.Conntrack {
		p.Add(layout.TableState, priorityDefault, "from pods", nil, action.GotoTable(layout.TableAffinity))
		p.Add(layout.TableAffinity, priorityDefault, "no affinity", nil, action.GotoTable(layout.TableService))
		return
	}
	serviceTables{p}.services()
	if p.config.policies() {
		policyTables{p}.policyStatic()
	}
}

// closeTunnels drops packets of pods to tunnels' ports.
func (p *program) closeTunnels(table uint8, priority uint16, purpose string, to oxm.MatchField) {
	for _, port := range p.config.tunnelPorts() {
		p.drop(table, priority, purpose, match(to, oxm.UDPDst(port)))
	}
}

func (p *program) route() {
	const gateway, local, cluster, outside = priorityHostward, 200, 100, 10
	c := p.config
	ipv4 := oxm.EthType(oxm.EthTypeIPv4)
	p.closeTunnels(layout.TableRoute, gateway+priorityForbid, "the tunnel's port is closed to pods", oxm.IPDst(host(c.Gateway)))
	p.closePorts(layout.TableRoute, gateway+priorityForbid, oxm.IPDst(host(c.Gateway)))
	p.Add(layout.TableRoute, gateway, "ARP for the gateway", match(oxm.ARP(), oxm.ARPTPA(host(c.Gateway))), action.Output(layout.PortTun))
	p.output(layout.TableRoute, gateway, "to the gateway", match(oxm.IPDst(host(c.Gateway))), c.toHost()...)
	p.Add(layout.TableRoute, local, "ARP for local pods", match(oxm.ARP(), oxm.ARPTPA(c.LocalSubnet)), action.GotoTable(layout.TableARPLocal))
	p.Add(layout.TableRoute, local, "to local pods", match(oxm.IPDst(c.LocalSubnet)), action.GotoTable(layout.TableLocal))
	for _, network := range c.ClusterNetworks {
		p.Add(layout.TableRoute, cluster, "ARP for remote pods", match(oxm.ARP(), oxm.ARPTPA(network)), action.GotoTable(layout.TableARPRemote))
		p.Add(layout.TableRoute, cluster, "to remote pods", match(oxm.IPDst(network)), action.GotoTable(layout.TableRemote))
	}
	p.Add(layout.TableRoute, cluster, "to Services", match(oxm.IPDst(c.ServiceNetwork)), action.GotoTable(layout.TableHost))
	p.Add(layout.TableRoute, outside, "to outside", match(ipv4), action.GotoTable(layout.TableExternal))
}

// routeNonsense drops packets to destinations that no host has. The loopback range matters most: kube-proxy may make the host route it
// (route_localnet), and then pods would reach what listens only on the host's loopback.
func (p *program) routeNonsense() {
	const multicast = 50
	for _, to := range nonsense() {
		p.drop(layout.TableRoute, priorityNonsense, to.purpose, match(oxm.IPDst(netip.MustParsePrefix(to.prefix))))
	}
	p.drop(layout.TableRoute, multicast, "multicast outside tables 110 to 120", match(oxm.IPDst(multicast4())))
}

// nonsense returns destinations outside the cluster that no host has.
func nonsense() []struct{ prefix, purpose string } {
	return []struct{ prefix, purpose string }{
		{"0.0.0.0/8", "to this network (0.0.0.0/8): the host would accept some"},
		{"127.0.0.0/8", "to the host's loopback"},
		{"255.255.255.255/32", "broadcast: the host would accept it"},
	}
}

func (p *program) deliver() {
	const node = 300
	c := p.config
	out := action.OutputReg(oxm.Whole(oxm.FieldReg(layout.RegPort)))
	if c.policies() {
		policyTables{p}.deliverByPolicy()
	} else {
		p.output(layout.TableIngress, node, "a node always reaches its pods", match(oxm.IPSrc(host(c.Gateway))), out)
		p.isolation(out)
	}
	p.closeTunnels(layout.TableHost, priorityForbid, "the tunnel's port is closed to pods", oxm.EthType(oxm.EthTypeIPv4))
	p.hostServices()
}

func (p *program) leave() {
	c := p.config
	p.closeTunnels(layout.TableExternal, priorityForbid, "the tunnel's port is closed to pods: a masqueraded packet would have a node's address",
		oxm.EthType(oxm.EthTypeIPv4))
	p.closePorts(layout.TableExternal, priorityForbid, oxm.EthType(oxm.EthTypeIPv4))
	p.closeMetadata()
	p.askNode()
	p.Add(layout.TableExternal, priorityDefault, "no exception", nil, action.GotoTable(layout.TableEgressFirewall))
	p.firewallStatic()
	p.output(layout.TableEgressRoute, priorityDefault, "leave by this node", nil, c.toHost()...)
}

// dnsPort is the port of name servers (RFC 1035, 4.2).
const dnsPort = 53

// askNode lets a pod send DNS queries to its own node, regardless of its egress firewall and its namespace's egress IPs: from here they go
// to the host. A network without either needs no flow for that.
func (p *program) askNode() {
	const priority = 200
	c := p.config
	if !(Firewalls{c}).on() { // then there are no egress IPs either
		return
	}
	for _, to := range []oxm.MatchField{oxm.UDPDst(dnsPort), oxm.TCPDst(dnsPort)} {
		p.output(layout.TableExternal, priority, "a pod may always ask its own node for names", match(to, oxm.IPDst(host(c.NodeIP))), c.toHost()...)
	}
}

func multicast4() netip.Prefix {
	const bits = 4
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{224}), bits)
}
