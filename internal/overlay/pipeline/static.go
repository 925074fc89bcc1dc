package pipeline

import (
	"net"
	"net/netip"
	"slices"

	"weft.dev/weft/internal/openflow"
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
func (c *Config) Static() map[openflow.Key]openflow.Entry { return Fragment(c.StaticRules()) }

// StaticRules is Static with the purpose of each flow.
func (c *Config) StaticRules() []Rule {
	p := c.program(OwnerCluster)
	p.classify()
	p.classifyHost()
	p.fromPods()
	p.state()
	p.route()
	p.routeNonsense()
	p.deliver()
	p.leave()
	p.egressStatic()
	for _, t := range tables {
		switch t.Number {
		case TableState, TableNode, TableAffinity, TableService, TableEndpoint, TableEgressPolicy, TableExternal, TableEgressFirewall, TableEgressRoute, TableNote:
			// These pass on everything else, or see no packets.
		case TableDeliver:
			// It gets only packets that it delivers.
		default:
			p.drop(t.Number, priorityDefault, "nothing else passes", nil)
		}
	}
	return p.rules
}

func (p *program) classify() {
	const priority, ports, pods = 1000, 200, 100
	p.drop(TableClassify, priority, "VLAN tags, single and double, are not allowed", match(openflow.VLANAny()))
	reserved := net.HardwareAddr{0x01, 0x80, 0xc2, 0, 0, 0}
	mask := net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xf0}
	p.drop(TableClassify, priority, "protocols between switches (STP, LLDP, pause) are not allowed", match(openflow.EthDstMasked(reserved, mask)))
	p.add(TableClassify, ports, "from the tunnel", match(openflow.InPort(PortVXLAN)), openflow.GotoTable(TableTunnel))
	p.drop(TableClassify, ports, "nothing else from the host", match(openflow.InPort(PortTun)))
	p.add(TableClassify, pods, "ARP from pods", match(openflow.ARP()), openflow.GotoTable(TablePod))
	p.add(TableClassify, pods, "IPv4 from pods", match(openflow.EthType(openflow.EthTypeIPv4)), openflow.GotoTable(TablePod))
}

// classifyHost admits packets of the host. The host is trusted, but sends no packet with a pod's address: packets that it forwards between
// pods are masqueraded to the gateway.
func (p *program) classifyHost() {
	const forbidden, own, pods, others = 450, 400, 350, 300
	c, tun := p.config, openflow.InPort(PortTun)
	p.drop(TableClassify, forbidden, "ICMP redirects of the host: Services pass tun0 both ways", match(tun, openflow.ICMPType(icmpRedirect)))
	p.drop(TableClassify, forbidden, "the host sends and receives no multicast", match(tun, openflow.IPDst(multicast4())))
	enter := []openflow.Action{source(0), openflow.GotoTable(TableState)}
	if c.Conntrack {
		// On the kernel datapath, packets arrive with the state of the host's own conntrack, which is of another zone.
		enter = slices.Insert(enter, 0, openflow.CTClear())
	}
	p.add(TableClassify, own, "from the host's own address, to pods anywhere", match(tun, openflow.IPSrc(host(c.Gateway))), enter...)
	for _, network := range c.ClusterNetworks {
		p.drop(TableClassify, pods, "the host does not send as a pod", match(tun, openflow.IPSrc(network)))
	}
	p.add(TableClassify, others, "through the host to local pods: from outside, from Services, from the node's other addresses",
		match(tun, openflow.IPDst(c.LocalSubnet)), enter...)
	p.add(TableClassify, others, "ARP from the host, whose sender address may be any of the host's",
		match(tun, openflow.ARP(), openflow.ARPSHA(c.gatewayMAC())),
		openflow.SetField(openflow.ARPSPA(host(c.Gateway))), source(0), openflow.GotoTable(TableRoute))
}

func (p *program) fromPods() {
	ipv4 := openflow.EthType(openflow.EthTypeIPv4)
	p.drop(TablePod, priorityForbid, "pods may not send as DHCP servers", match(ipv4, openflow.UDPSrc(dhcpServer), openflow.UDPDst(dhcpClient)))
	p.drop(TablePod, priorityForbid, "pods may not send ICMP redirects", match(openflow.ICMPType(icmpRedirect)))
}

func (p *program) state() {
	p.add(TableState, priorityPassOn, "from the tunnel: checked by the sender's node", match(openflow.InPort(PortVXLAN)), openflow.GotoTable(TableRoute))
	p.add(TableState, priorityPassOn, "from the host", match(openflow.InPort(PortTun)), openflow.GotoTable(TableRoute))
	p.add(TableService, priorityDefault, "no Service of the switch", nil, openflow.GotoTable(TableEgressPolicy))
	p.add(TableEgressPolicy, priorityDefault, "the sender is not isolated", nil, openflow.GotoTable(TableRoute))
	if !p.config.Conntrack {
		p.add(TableState, priorityDefault, "from pods", nil, openflow.GotoTable(TableAffinity))
		p.add(TableAffinity, priorityDefault, "no affinity", nil, openflow.GotoTable(TableService))
		return
	}
	p.services()
	if p.config.policies() {
		p.policyStatic()
	}
}

// closeTunnels drops packets of pods to tunnels' ports.
func (p *program) closeTunnels(table uint8, priority uint16, purpose string, to openflow.MatchField) {
	for _, port := range p.config.tunnelPorts() {
		p.drop(table, priority, purpose, match(to, openflow.UDPDst(port)))
	}
}

func (p *program) route() {
	const gateway, local, cluster, outside = priorityHostward, 200, 100, 10
	c := p.config
	ipv4 := openflow.EthType(openflow.EthTypeIPv4)
	p.closeTunnels(TableRoute, gateway+priorityForbid, "the tunnel's port is closed to pods", openflow.IPDst(host(c.Gateway)))
	p.closePorts(TableRoute, gateway+priorityForbid, openflow.IPDst(host(c.Gateway)))
	p.add(TableRoute, gateway, "ARP for the gateway", match(openflow.ARP(), openflow.ARPTPA(host(c.Gateway))), openflow.Output(PortTun))
	p.output(TableRoute, gateway, "to the gateway", match(openflow.IPDst(host(c.Gateway))), c.toHost()...)
	p.add(TableRoute, local, "ARP for local pods", match(openflow.ARP(), openflow.ARPTPA(c.LocalSubnet)), openflow.GotoTable(TableARPLocal))
	p.add(TableRoute, local, "to local pods", match(openflow.IPDst(c.LocalSubnet)), openflow.GotoTable(TableLocal))
	for _, network := range c.ClusterNetworks {
		p.add(TableRoute, cluster, "ARP for remote pods", match(openflow.ARP(), openflow.ARPTPA(network)), openflow.GotoTable(TableARPRemote))
		p.add(TableRoute, cluster, "to remote pods", match(openflow.IPDst(network)), openflow.GotoTable(TableRemote))
	}
	p.add(TableRoute, cluster, "to Services", match(openflow.IPDst(c.ServiceNetwork)), openflow.GotoTable(TableHost))
	p.add(TableRoute, outside, "to outside", match(ipv4), openflow.GotoTable(TableExternal))
}

// routeNonsense drops packets to destinations that no host has. The loopback range matters most: kube-proxy may make the host route it
// (route_localnet), and then pods would reach what listens only on the host's loopback.
func (p *program) routeNonsense() {
	const multicast = 50
	for _, to := range nonsense() {
		p.drop(TableRoute, priorityNonsense, to.purpose, match(openflow.IPDst(netip.MustParsePrefix(to.prefix))))
	}
	p.drop(TableRoute, multicast, "multicast outside tables 110 to 120", match(openflow.IPDst(multicast4())))
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
	out := openflow.OutputReg(openflow.Whole(openflow.FieldReg(RegPort)))
	if c.policies() {
		p.deliverByPolicy()
	} else {
		p.output(TableIngress, node, "a node always reaches its pods", match(openflow.IPSrc(host(c.Gateway))), out)
		p.isolation(out)
	}
	p.closeTunnels(TableHost, priorityForbid, "the tunnel's port is closed to pods", openflow.EthType(openflow.EthTypeIPv4))
	p.hostServices()
}

func (p *program) leave() {
	c := p.config
	p.closeTunnels(TableExternal, priorityForbid, "the tunnel's port is closed to pods: a masqueraded packet would have a node's address",
		openflow.EthType(openflow.EthTypeIPv4))
	p.closePorts(TableExternal, priorityForbid, openflow.EthType(openflow.EthTypeIPv4))
	p.closeMetadata()
	p.askNode()
	p.add(TableExternal, priorityDefault, "no exception", nil, openflow.GotoTable(TableEgressFirewall))
	p.firewallStatic()
	p.output(TableEgressRoute, priorityDefault, "leave by this node", nil, c.toHost()...)
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
	for _, to := range []openflow.MatchField{openflow.UDPDst(dnsPort), openflow.TCPDst(dnsPort)} {
		p.output(TableExternal, priority, "a pod may always ask its own node for names", match(to, openflow.IPDst(host(c.NodeIP))), c.toHost()...)
	}
}

func multicast4() netip.Prefix {
	const bits = 4
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{224}), bits)
}
