package host

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/nft"
)

// Names in the table inet weft of the maps and the set for egress IPs.
const (
	egressMarks     = "egress-marks"     // source MAC address to mark
	egressSources   = "egress-sources"   // mark to egress IP
	egressAddresses = "egress-addresses" // the egress IPs that the node holds
)

// priorityMangle is the priority of the chain that sets marks: after connection tracking (-200) and before translation (-100).
const priorityMangle = -150

// EgressIP is an egress IP that the node holds.
type EgressIP struct {
	// VNID is the project's VNID.
	VNID uint32
	// Address is the egress IP. MAC is the source address of the switch's packets for it, as in the flows (pipeline.EgressMAC).
	Address netip.Addr
	MAC     net.HardwareAddr
	// Uplink is the interface with the address.
	Uplink string
}

// EgressMark returns the mark of packets that leave by a project's egress IP: its VNID, changed as in OpenShift SDN, so that an
// administrator's rules by mark continue to work. The two bits that kube-proxy and the kubelet use (masquerade, 14, and drop, 15) are never
// set. Each VNID has a different mark, and none is 0.
func EgressMark(vnid uint32) uint32 {
	const (
		masquerade, masqueradeElsewhere = uint32(1) << 14, uint32(1) << 24
		drop, dropElsewhere             = uint32(1) << 15, uint32(1) << 28
		global                          = 0xff000000
	)
	if vnid == 0 {
		return global
	}
	mark := vnid
	if mark&drop != 0 {
		mark = mark&^drop | dropElsewhere
	}
	if mark&masquerade != 0 {
		mark = mark&^masquerade | masqueradeElsewhere
	}
	return mark
}

// Rules returns the egress IP's part of the node's rules.
func (e EgressIP) Rules() map[nft.Key]nft.Item {
	f := fragment{}
	note := "egressip/" + strconv.FormatUint(uint64(e.VNID), 10)
	mark := strconv.FormatUint(uint64(EgressMark(e.VNID)), 10)
	f.add(
		&nft.Element{Family: nft.FamilyInet, Table: table, Set: egressMarks, Match: []string{e.MAC.String()}, Value: []string{mark}, Owner: note},
		&nft.Element{Family: nft.FamilyInet, Table: table, Set: egressSources, Match: []string{mark}, Value: []string{e.Address.String()}, Owner: note},
		&nft.Element{Family: nft.FamilyInet, Table: table, Set: egressAddresses, Match: []string{e.Address.String()}, Owner: nodeNote},
	)
	return f
}

// Translated returns the egress IPs that rules translate to, each with the mark of its packets.
func Translated(rules map[nft.Key]nft.Item) map[netip.Addr]string {
	all := map[netip.Addr]string{}
	for _, item := range rules {
		element, ok := item.(*nft.Element)
		if !ok || element.Table != table || element.Set != egressSources || len(element.Value) != 1 {
			continue
		}
		if address, err := netip.ParseAddr(element.Value[0]); err == nil {
			all[address] = strings.Join(element.Match, " ")
		}
	}
	return all
}

// Links returns the address itself.
func (e EgressIP) Links() map[link.Key]link.Item {
	item := &link.Address{Device: e.Uplink, Address: e.Address}
	return map[link.Key]link.Item{item.Key(): item}
}

// egress marks the switch's packets for egress IPs by their source MAC address. It drops them if the node holds no egress IP for it: they
// must not leave by the node's own address. New connections to an egress IP are rejected: only replies arrive there.
func (c *Config) egress(f fragment) {
	f.add(
		&nft.Map{Family: nft.FamilyInet, Table: table, Name: egressMarks, Type: "ether_addr", Value: "mark"},
		&nft.Map{Family: nft.FamilyInet, Table: table, Name: egressSources, Type: "mark", Value: "ipv4_addr"},
		&nft.Set{Family: nft.FamilyInet, Table: table, Name: egressAddresses, Type: "ipv4_addr"},
	)
	f.chain(nft.Chain{Family: nft.FamilyInet, Name: "egress", Hook: nft.HookPrerouting, Priority: priorityMangle},
		fmt.Sprintf(`ip daddr @%s ct state new reject`, egressAddresses),
		fmt.Sprintf(`iifname "%s" meta mark set ether saddr map @%s accept`, Tun, egressMarks),
		fmt.Sprintf(`iifname "%s" ether saddr & ff:ff:ff:00:00:00 == 0a:59:00:00:00:00 drop`, Tun))
}
