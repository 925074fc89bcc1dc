package node

import (
	"net"
	"net/netip"
	"slices"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/flannel/host"
	"weft.dev/weft/internal/flannel/judge"
	"weft.dev/weft/internal/flannel/published"
	"weft.dev/weft/internal/nft"
	"weft.dev/weft/internal/nft/nftnl"
	"weft.dev/weft/internal/reconcile"
)

// Names in nftables. The table of the bridge family checks at each port that port, MAC and address match.
const (
	portsTable = "weft-flannel-ports"
	setPorts   = "ports"
	setPods4   = "pods4"
	setPods6   = "pods6"
	setARP     = "arp"

	// hostGroup is the device group of pods' host veths, set in the request that creates them.
	hostGroup = host.PodGroup
	// mostAddresses bounds the addresses of pods4 and pods6. A bridge has 1,023 ports, and a pod with IPv6 addresses two more for neighbour
	// discovery.
	mostAddresses = 8192
	// priorityBridge is before the bridge's own NAT (NF_BR_PRI_FILTER_BRIDGED).
	priorityBridge = -200
)

// items are a fragment of the table of the bridge family.
type items = map[nftnl.Key]nftnl.Item

// portRules returns the content of the table of the bridge family without pods. Ports that are not a pod's pass.
func portRules() items {
	const chain = "prerouting"
	pass := func(matches ...nftnl.Match) nftnl.Rule { return nftnl.Rule{Matches: matches, Verdict: nftnl.Accept()} }
	ofPod4 := []nftnl.Field{nftnl.InDevice, nftnl.EtherSource, nftnl.IPSource}
	ofPod6 := []nftnl.Field{nftnl.InDevice, nftnl.EtherSource, nftnl.IP6Source}
	ofARP := []nftnl.Field{nftnl.InDevice, nftnl.EtherSource, nftnl.ARPSenderMAC, nftnl.ARPSender}
	loopback4, loopback6 := nftnl.Is(nftnl.IPNetwork, nftnl.Byte(loopbackNetwork)), nftnl.Is(nftnl.IP6Destination, nftnl.Addr(netip.IPv6Loopback()))
	return nftnl.Items(
		&nftnl.Set{Name: setPorts, Fields: []nftnl.Field{nftnl.InDevice}},
		&nftnl.Set{Name: setPods4, Fields: ofPod4, Most: mostAddresses},
		&nftnl.Set{Name: setPods6, Fields: ofPod6, Most: mostAddresses},
		&nftnl.Set{Name: setARP, Fields: ofARP},
		&nftnl.Chain{Name: chain, Hook: nftnl.HookPrerouting, Priority: priorityBridge},
		&nftnl.Rules{Chain: chain, Rules: []nftnl.Rule{
			// Most packets first: of pods, with their addresses, and none that a later rule drops.
			pass(nftnl.Not(loopback4), nftnl.In(setPods4, ofPod4...)),
			pass(nftnl.Not(loopback6), nftnl.Not(nftnl.Is(nftnl.L4Proto, nftnl.Proto(icmpv6))),
				nftnl.In(setPods6, ofPod6...)),
			// A pod's port has the group and is in the set: so neither an unknown port nor a changed group opens it.
			pass(nftnl.Not(nftnl.Is(nftnl.InGroup, nftnl.Bits(hostGroup))), nftnl.Not(nftnl.In(setPorts, nftnl.InDevice))),
			toLoopback(loopback4),
			toLoopback(loopback6),
			fromRouter(routerAdvertisement),
			fromRouter(redirect),
			fromRouter(listenerQuery),
			foreignAddress("advertises another's address", neighbourAdvertisement),
			foreignAddress("claims another's address", neighbourSolicitation, nftnl.Is(nftnl.IP6Source, nftnl.Addr(netip.IPv6Unspecified()))),
			pass(nftnl.In(setPods6, ofPod6...)),
			pass(nftnl.In(setARP, ofARP...)),
			{Counter: true, Verdict: nftnl.Drop(), Owner: "not the MAC and address of the port"},
		}},
	)
}

// loopbackNetwork is the first byte of IPv4's loopback addresses, 127.0.0.0/8.
const loopbackNetwork = 127

// toLoopback drops packets to the node's loopback addresses, which are never valid on a link (RFC 1122, 3.2.1.3).
func toLoopback(loopback nftnl.Match) nftnl.Rule {
	return nftnl.Rule{Matches: []nftnl.Match{loopback}, Counter: true, Verdict: nftnl.Drop(), Owner: "for a loopback address"}
}

// Types of ICMPv6 messages that only a router sends (RFC 4861, and RFC 3810 for queries about multicast listeners). Once its port has received a
// query, the bridge sends solicitations for neighbours only to ports with listeners that it knows, and those expire: pods do not see the
// query, and do not report theirs again.
const (
	listenerQuery       = 130
	routerAdvertisement = 134
	redirect            = 137
	icmpv6              = 58
	etherIPv6           = 0x86dd
)

// fromRouter drops a type of ICMPv6 messages. The rule reads type and code as the source port, which is at the same offset in other
// protocols.
func fromRouter(kind uint16) nftnl.Rule {
	return nftnl.Rule{
		Matches: []nftnl.Match{
			nftnl.Is(nftnl.EtherType, nftnl.Port(etherIPv6)), nftnl.Is(nftnl.L4Proto, nftnl.Proto(icmpv6)),
			nftnl.Is(nftnl.SourcePort, nftnl.PortRange(kind<<8, kind<<8|0xff)),
		},
		Counter: true, Verdict: nftnl.Drop(), Owner: "a router's message",
	}
}

// ICMPv6 types of the message that announces the MAC of an IPv6 address, and of the one that asks for it. Without a source address, the latter
// asks whether another host has the address (duplicate address detection, RFC 4862, 5.4.3): a host that is about to use it gives it up. Without its
// link-local address, the bridge could not resolve the addresses of pods for other nodes.
const (
	neighbourSolicitation  = 135
	neighbourAdvertisement = 136
)

// foreignAddress drops a type of neighbour discovery's messages whose target is not the pod's own address.
func foreignAddress(owner string, kind uint8, more ...nftnl.Match) nftnl.Rule {
	matches := append([]nftnl.Match{
		nftnl.Is(nftnl.EtherType, nftnl.Port(etherIPv6)), nftnl.Is(nftnl.L4Proto, nftnl.Proto(icmpv6)), nftnl.Is(nftnl.ICMPType, nftnl.Byte(kind)),
	}, more...)
	return nftnl.Rule{
		Matches: append(matches, nftnl.Not(nftnl.In(setPods6, nftnl.InDevice, nftnl.EtherSource, nftnl.NDTarget))),
		Counter: true, Verdict: nftnl.Drop(), Owner: owner,
	}
}

// portItems returns a pod's items in that table.
func portItems(rec *attach.Record) items {
	mac, err := net.ParseMAC(rec.MAC)
	if err != nil { // a record's MAC has been validated; without one nothing passes
		return items{}
	}
	port, ether := nftnl.Name(rec.HostInterface), nftnl.MAC(mac)
	list := []nftnl.Item{&nftnl.Element{Set: setPorts, Match: []nftnl.Value{port}}}
	six := false
	for _, address := range rec.Addresses {
		addr := nftnl.Addr(address.Addr())
		if address.Addr().Is4() {
			list = append(list, &nftnl.Element{Set: setPods4, Match: []nftnl.Value{port, ether, addr}},
				&nftnl.Element{Set: setARP, Match: []nftnl.Value{port, ether, ether, addr}})
			continue
		}
		six = true
		list = append(list, &nftnl.Element{Set: setPods6, Match: []nftnl.Value{port, ether, addr}})
	}
	if six { // neighbour discovery: from the link-local address, and duplicate address detection for it (RFC 4862, 5.4)
		for _, addr := range []netip.Addr{linkLocal(mac), netip.IPv6Unspecified()} {
			list = append(list, &nftnl.Element{Set: setPods6, Match: []nftnl.Value{port, ether, nftnl.Addr(addr)}})
		}
	}
	return nftnl.Items(list...)
}

// linkLocal returns the address that the kernel derives from an interface's MAC (RFC 4291, appendix A).
func linkLocal(mac net.HardwareAddr) netip.Addr {
	return netip.AddrFrom16([16]byte{0xfe, 0x80, 8: mac[0] ^ 2, 9: mac[1], 10: mac[2], 11: 0xff, 12: 0xfe, 13: mac[3], 14: mac[4], 15: mac[5]})
}

// Tables are the network's tables that the agent's loop maintains.
func Tables() []nft.Table { return []nft.Table{{Family: nft.FamilyInet, Name: published.Table}} }

// apart are the network's tables that loops of its own maintain: the tables of the judge and of the ports, and the lease's.
func apart() []nft.Table {
	return slices.DeleteFunc(append(AllTables()[len(Tables()):], host.Tables()...), func(t nft.Table) bool { return host.Flanneld(t.Name) })
}

// AllTables are all nftables tables that the agent creates for the network's pods.
func AllTables() []nft.Table {
	return slices.Concat(Tables(), judge.Tables(), []nft.Table{{Family: nft.FamilyBridge, Name: portsTable}})
}

// portLoop keeps the table of the bridge family.
type portLoop = reconcile.Loop[nftnl.Key, nftnl.Item]
