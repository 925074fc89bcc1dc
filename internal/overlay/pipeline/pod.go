package pipeline

import (
	"fmt"
	"net"
	"net/netip"
	"slices"

	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/openflow/action"
	"weft.dev/weft/internal/openflow/oxm"
	"weft.dev/weft/internal/overlay/pipeline/layout"
	"weft.dev/weft/internal/policy"
	"weft.dev/weft/internal/reconcile"
)

// Pod is a local pod's interface.
type Pod struct {
	// Owner is the owner of the attachment, "attachment/<container>/<interface>".
	Owner reconcile.Owner
	// OFPort is its ofport, at least FirstPodPort.
	OFPort uint32
	// Addrs are its addresses. IPv6 addresses get no flows: IPv6 is dropped.
	Addrs []netip.Addr
	// MAC is its MAC address; nil: the one that follows from each address (PodMAC).
	MAC net.HardwareAddr
	// VNID is its namespace's VNID, which its packets carry. A flat network ignores it.
	VNID uint32
	// Multicast says that it may send multicast to pods with its VNID. Only modes with VNIDs use it.
	Multicast bool
	// Isolation says how policies isolate it. Only ModeNetworkPolicy uses it.
	Isolation policy.Isolation
	// Firewall is the number of its namespace's egress firewall; 0: it has none. A flat network ignores it.
	Firewall uint32
	// Egress is the group for its traffic that leaves the cluster (EgressIPs); 0: it leaves by this node.
	Egress uint32
	// Admits are VNIDs that it admits besides its own and 0, while its namespace moves between VNIDs.
	Admits []uint32
}

// CheckPod returns an error that says why Pod would return no flows.
func (c *Config) CheckPod(pod Pod) error {
	usable := 0
	switch {
	case pod.OFPort < layout.FirstPodPort || pod.OFPort > 0xfeff: // the last number that an interface can have
		return fmt.Errorf("%s: port %d is not a pod's port", pod.Owner, pod.OFPort)
	case pod.VNID > vnidMax || slices.ContainsFunc(pod.Admits, func(vnid uint32) bool { return vnid > vnidMax }):
		return fmt.Errorf("%s: VNID %d, or one of %d, is over %d", pod.Owner, pod.VNID, pod.Admits, vnidMax)
	case pod.MAC != nil && !unicastMAC(pod.MAC):
		return fmt.Errorf("%s: %s is not a unicast MAC address", pod.Owner, pod.MAC)
	}
	for _, addr := range pod.Addrs {
		if !addr.Is4() {
			continue
		}
		if !c.LocalSubnet.Contains(addr) || addr == c.Gateway {
			return fmt.Errorf("%s: address %s is not a pod address of the subnet %s", pod.Owner, addr, c.LocalSubnet)
		}
		usable++
	}
	if usable == 0 {
		return fmt.Errorf("%s: no IPv4 address", pod.Owner)
	}
	return nil
}

// Pod returns the flows that open a pod's port; none if the pod is not valid (CheckPod): its port stays closed.
func (c *Config) Pod(pod Pod) map[openflow.Key]openflow.Entry {
	return openflow.Fragment(c.PodRules(pod))
}

// PodRules is Pod with the purpose of each flow.
func (c *Config) PodRules(pod Pod) []openflow.Rule {
	if c.CheckPod(pod) != nil {
		return nil
	}
	p := c.program(pod.Owner)
	for _, addr := range pod.Addrs {
		if addr.Is4() {
			p.pod4(pod, addr)
		}
	}
	p.admit(&pod)
	return p.List
}

func (p *program) pod4(pod Pod, addr netip.Addr) {
	const priority = 100
	mac := pod.MAC
	if mac == nil {
		mac = PodMAC(addr)
	}
	own := podPackets{p.config, &pod}
	vnid := own.source()
	port, from := oxm.InPort(pod.OFPort), oxm.EthSrc(mac)
	multicastBit := net.HardwareAddr{1, 0, 0, 0, 0, 0}
	p.Add(layout.TablePod, priority, "ARP from the pod, with its own addresses",
		match(port, from, oxm.ARP(), oxm.ARPSPA(host(addr)), oxm.ARPSHA(mac)),
		source(vnid), action.GotoTable(layout.TableRoute))
	p.Add(layout.TablePod, priority, "IPv4 from the pod's own address, to one receiver",
		match(port, from, oxm.EthDstMasked(net.HardwareAddr{0, 0, 0, 0, 0, 0}, multicastBit), oxm.IPSrc(host(addr))),
		slices.Concat([]action.Action{source(vnid)}, own.sends(), own.guarded(), []action.Action{action.GotoTable(layout.TableState)})...)
	p.multicastFrom(pod, addr, mac)
	p.Add(layout.TableARPLocal, priority, "ARP to the pod", match(oxm.ARP(), oxm.ARPTPA(host(addr))), action.Output(pod.OFPort))
	p.Add(layout.TableLocal, priority, "to the pod", match(oxm.IPDst(host(addr))),
		own.toLocal(mac)...)
	egressTables{p}.egressPod(pod, addr, mac)
	if p.config.Conntrack {
		serviceTables{p}.hairpin(pod.OFPort, addr, mac)
	}
	if p.config.policies() {
		policyTables{p}.itself(pod, addr)
		p.errorsOf(&pod, addr, own.toLocal(mac))
	}
}

// podPackets are the packets that a pod sends and receives: the actions that mark them as the pod's.
type podPackets struct {
	config *Config
	pod    *Pod
}

// source returns their source VNID, 0 in a flat network.
func (k podPackets) source() uint32 {
	if k.config.hasVNIDs() {
		return k.pod.VNID
	}
	return 0
}

// guarded returns the actions that set the number of the sender's egress firewall.
func (k podPackets) guarded() []action.Action {
	if !(Firewalls{k.config}).on() || k.pod.Firewall == 0 {
		return nil
	}
	return []action.Action{action.SetField(oxm.Reg(layout.RegFirewall, k.pod.Firewall))}
}

// sends returns the actions that set how a packet's sender is isolated; receives does the same for its receiver.
func (k podPackets) sends() []action.Action {
	if !k.config.policies() || !k.pod.Isolation.Egress {
		return nil
	}
	flags := layout.FlagEgress
	if k.pod.Isolation.KeepsEgress {
		flags |= layout.FlagKeepEgress
	}
	return []action.Action{setFlags(flags, flags)}
}

func (k podPackets) receives() []action.Action {
	if !k.config.policies() || !k.pod.Isolation.Ingress {
		return nil
	}
	flags := layout.FlagIngress
	if k.pod.Isolation.KeepsIngress {
		flags |= layout.FlagKeepIngress
	}
	return []action.Action{setFlags(flags, flags)}
}

// toLocal returns the actions that send a packet for a local pod to the table that decides whether the pod receives it.
func (k podPackets) toLocal(mac net.HardwareAddr) []action.Action {
	return slices.Concat([]action.Action{
		action.SetField(oxm.Reg(layout.RegDestination, k.source())), action.SetField(oxm.Reg(layout.RegPort, k.pod.OFPort)),
		action.SetField(oxm.EthDst(mac)),
	}, k.receives(), []action.Action{action.GotoTable(layout.TableIngress)})
}
