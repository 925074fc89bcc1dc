// Package host compiles what a node needs besides flows for Neutron networks: br-n, its patch ports to br-int, the host's interface,
// routes, and nftables rules. It opens no socket.
package host

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/neutron/pipeline"
	"weft.dev/weft/internal/nft"
	"weft.dev/weft/internal/ovsdb"
	"weft.dev/weft/internal/reconcile"
)

const (
	// Device is the host's interface on br-n.
	Device = "weft-n0"
	// IntegrationBridge is the bridge that OVN, or Neutron's agent, programs.
	IntegrationBridge = "br-int"
	// PodGroup is the device group of pods' host veths. A userspace datapath reads a veth by a packet socket, and the kernel receives each
	// frame as well: frames of this group are dropped before the kernel processes them.
	PodGroup uint32 = 77

	table      = "weft-neutron"
	uuidDigits = 12
	patchNear  = "wn" // on br-n
	patchFar   = "wi" // on br-int
	// prepluggedPrefix starts the names of pre-plugged host veths, which end with the slot.
	prepluggedPrefix = "wp-"
)

// Slots number the ports of a node. All numbers that a port needs are derived from its slot.
const (
	// FirstZone is the first conntrack zone; OVN uses zones from 1 on, and the overlay has separate ones.
	FirstZone = 57344
	// Slots is how many ports a node can have: zones end at 65279.
	Slots = 65279 - FirstZone + 1

	firstPort = 10
)

// Slot is the number of a port on this node, from 0.
type Slot int

// Valid reports whether the slot exists.
func (s Slot) Valid() bool { return s >= 0 && s < Slots }

// Zone returns the conntrack zone.
func (s Slot) Zone() uint16 { return uint16(FirstZone + int(s)) } //nolint:gosec // Valid

// Patch returns the OpenFlow port of the patch port on br-n.
func (s Slot) Patch() uint32 { return uint32(firstPort + 2*int(s)) } //nolint:gosec // Valid

// Pod returns the OpenFlow port of the pod's veth.
func (s Slot) Pod() uint32 { return s.Patch() + 1 }

// Preplugged returns the name of the slot's pre-plugged host veth.
func (s Slot) Preplugged() string { return prepluggedPrefix + strconv.Itoa(int(s)) }

// PrepluggedSlot returns the slot of a pre-plugged host veth, by its name.
func PrepluggedSlot(name string) (Slot, bool) {
	digits, is := strings.CutPrefix(name, prepluggedPrefix)
	number, err := strconv.Atoi(digits)
	slot := Slot(number)
	return slot, is && err == nil && slot.Valid() && slot.Preplugged() == name
}

// markID is the external_id of a patch port on br-n that records the port's use.
const markID = "weft-port"

// Mark records the use of a port since it was plugged: the switch keeps it for the next agent process. The zero value: unused.
type Mark struct {
	// Used reports that a pod is on the port, or was since the port was plugged.
	Used bool
	// Released is when the last pod left it, in whole seconds; zero: no pod was on it.
	Released time.Time
}

const used = "used"

func (m Mark) ids(owner reconcile.Owner) map[string]string {
	ids := map[string]string{ovsdb.OwnerID: string(owner)}
	switch {
	case m.Used:
		ids[markID] = used
	case !m.Released.IsZero():
		ids[markID] = m.Released.UTC().Format(time.RFC3339)
	}
	return ids
}

// Left is what a former agent process left of a port.
type Left struct {
	Slot Slot
	Mark Mark
}

// LeftOf returns what a patch port on br-n records, from its name, OpenFlow port and mark. For other ports ok is false.
func LeftOf(row ovsdb.Row) (digits string, left Left, ok bool) {
	port, is := row.(*ovsdb.Port)
	if !is || port.Bridge != pipeline.Bridge {
		return "", left, false
	}
	digits, ok = strings.CutPrefix(port.Name, patchNear)
	left.Slot = Slot((int(port.OFPort) - firstPort) / 2)
	if text, marked := port.ExternalIDs[markID]; marked {
		at, err := time.Parse(time.RFC3339, text)
		left.Mark = Mark{Used: err != nil, Released: at} // an unreadable mark counts as used
	}
	return digits, left, ok && len(digits) == uuidDigits && left.Slot.Valid() && left.Slot.Patch() == uint32(port.OFPort)
}

// Digits returns the part of a port's UUID in the names of its patch ports: its first 12 digits.
func Digits(uuid string) string {
	digits := strings.ReplaceAll(uuid, "-", "")
	return digits[:min(uuidDigits, len(digits))]
}

// IntegrationPort returns the name of a port's end on br-int.
func IntegrationPort(uuid string) string { return patchFar + Digits(uuid) }

// Tables are the network's tables of nftables.
func Tables() []nft.Table {
	return []nft.Table{{Family: nft.FamilyInet, Name: table}, {Family: nft.FamilyARP, Name: table}}
}

// Devices are the devices that the network configures and the switch creates.
func Devices() []link.Key { return []link.Key{{Kind: link.KindDevice, Name: Device}} }

func rowsOf(rows ...ovsdb.Row) map[ovsdb.Key]ovsdb.Row {
	fragment := map[ovsdb.Key]ovsdb.Row{}
	for _, row := range rows {
		fragment[row.Key()] = row
	}
	return fragment
}

// Rows returns br-n with the host's interface. Without flows the bridge forwards nothing.
func Rows(datapath string) map[ovsdb.Key]ovsdb.Row {
	ids := map[string]string{ovsdb.OwnerID: string(pipeline.Owner)}
	return rowsOf(
		&ovsdb.Bridge{
			Name: pipeline.Bridge, DatapathType: datapath, FailMode: "secure", ExternalIDs: ids,
			Protocols: []string{"OpenFlow13", "OpenFlow14", "OpenFlow15"},
			// A controller's hidden flows would be in effect in addition to the pipeline.
			OtherConfig: map[string]string{"disable-in-band": "true"},
		},
		&ovsdb.Port{
			Bridge: pipeline.Bridge, Name: Device, Type: ovsdb.TypeInternal, OFPort: uint16(pipeline.HostPort), ExternalIDs: ids,
			MAC: pipeline.HostMAC().String(),
		},
	)
}

// PortRows returns the patch ports that connect br-n to a Neutron port. The end on br-int has what OVN and Neutron's agent need to bind it.
func PortRows(owner reconcile.Owner, uuid string, mac net.HardwareAddr, left Left) map[ovsdb.Key]ovsdb.Row {
	near, far := patchNear+Digits(uuid), IntegrationPort(uuid)
	return rowsOf(
		nearRow(owner, uuid, left),
		&ovsdb.Port{
			Bridge: IntegrationBridge, Name: far, Type: ovsdb.TypePatch, Options: map[string]string{"peer": near},
			ExternalIDs: map[string]string{
				ovsdb.OwnerID: string(owner), "iface-id": uuid, "attached-mac": mac.String(), "vm-id": uuid, "iface-status": "active",
			},
		},
	)
}

func nearRow(owner reconcile.Owner, uuid string, left Left) *ovsdb.Port {
	return &ovsdb.Port{
		Bridge: pipeline.Bridge, Name: patchNear + Digits(uuid), Type: ovsdb.TypePatch, OFPort: uint16(left.Slot.Patch()), //nolint:gosec // Valid
		Options: map[string]string{"peer": IntegrationPort(uuid)}, ExternalIDs: left.Mark.ids(owner),
	}
}

// PodRows returns the port of a pod's host veth.
func PodRows(owner reconcile.Owner, veth string, slot Slot) map[ovsdb.Key]ovsdb.Row {
	return rowsOf(&ovsdb.Port{
		Bridge: pipeline.Bridge, Name: veth, OFPort: uint16(slot.Pod()), //nolint:gosec // Valid
		ExternalIDs: map[string]string{ovsdb.OwnerID: string(owner)},
	})
}

// Links returns the host's interface.
func Links() map[link.Key]link.Item {
	device := &link.Device{
		Name: Device, Owner: string(pipeline.Owner), MAC: pipeline.HostMAC(), Up: true,
		Addresses: []netip.Prefix{netip.PrefixFrom(pipeline.HostAddress(), pipeline.HostAddress().BitLen())}, NoPrefixRoute: true,
		// Answers to what the node sends to a host port at 127.0.0.1 arrive here.
		Sysctls: link.Sysctls{DisableIPv6: link.On, ProxyARP: link.Off, SendRedirects: link.Off, RouteLocalnet: link.On},
	}
	return map[link.Key]link.Item{device.Key(): device}
}

// Routes returns the routes by which the host reaches a pod.
func Routes(addresses []netip.Prefix) map[link.Key]link.Item {
	fragment := map[link.Key]link.Item{}
	for _, p := range addresses {
		if p.Addr().Is4() {
			r := &link.Route{Dst: netip.PrefixFrom(p.Addr(), p.Addr().BitLen()), Device: Device, Source: pipeline.HostAddress(), Scope: link.ScopeLink}
			fragment[r.Key()] = r
		}
	}
	return fragment
}

// Priorities of the base chains (enum nf_ip_hook_priorities of the kernel's netfilter_ipv4.h).
const (
	priorityClose  = -450 // before defragmentation and connection tracking
	priorityFilter = 0
	priorityFirst  = 99  // before kube-proxy's, which is at 100
	prioritySNAT   = 101 // after kube-proxy's
)

// Rules returns the node's rules; tunnels are the UDP ports of tunnels between nodes. They must be in effect before the first port of a userspace datapath.
//
// A forwarding host would send other pods' packets to a pod's /32 route by the host's interface, and masquerade them to HostAddress, which
// the flows pass: so only answers are forwarded there. Packets from there may open connections only to Services: kube-proxy has translated
// them. They leave with the node's address, because nothing else has a route to the pod.
func Rules(tunnels []uint16) map[nft.Key]nft.Item {
	fragment := map[nft.Key]nft.Item{}
	add := func(items ...nft.Item) {
		for _, item := range items {
			fragment[item.Key()] = item
		}
	}
	for _, t := range Tables() {
		add(&t)
	}
	chain := func(c nft.Chain, rules ...string) {
		c.Table = table
		if c.Type == "" {
			c.Type = nft.TypeFilter
		}
		list := &nft.ChainRules{Family: c.Family, Table: table, Chain: c.Name}
		for _, text := range rules {
			list.Rules = append(list.Rules, nft.Rule{Text: text, Owner: string(pipeline.Owner)})
		}
		add(&c, list)
	}
	closed := fmt.Sprintf("iifgroup %d drop", PodGroup)
	chain(nft.Chain{Family: nft.FamilyInet, Name: "close", Hook: nft.HookPrerouting, Priority: priorityClose}, closed,
		fmt.Sprintf(`iifname "%s" ip daddr 127.0.0.0/8 drop`, Device))
	chain(nft.Chain{Family: nft.FamilyARP, Name: "close", Hook: nft.HookInput, Priority: priorityFilter}, closed)
	chain(nft.Chain{Family: nft.FamilyInet, Name: "input", Hook: nft.HookInput, Priority: priorityFilter},
		fmt.Sprintf(`iifname "%s" ct state invalid drop`, Device),
		fmt.Sprintf(`iifname "%s" ct state new ct status & dnat == 0 drop`, Device))
	add(hostPortSets()...)
	for _, c := range hostPortChains(tunnels) {
		chain(c.Chain, c.Rules...)
	}
	chain(nft.Chain{Family: nft.FamilyInet, Name: "forward", Hook: nft.HookForward, Priority: priorityFilter},
		toHostPort+" accept",
		fmt.Sprintf(`oifname "%s" ct direction original drop`, Device),
		fmt.Sprintf(`oifname "%s" ct state invalid drop`, Device),
		fmt.Sprintf(`iifname "%s" ct status & dnat == 0 drop`, Device))
	add(toPods()...)
	chain(nft.Chain{Family: nft.FamilyInet, Name: "translate", Type: nft.TypeNAT, Hook: nft.HookPostrouting, Priority: prioritySNAT},
		fmt.Sprintf(`iifname "%s" masquerade`, Device))
	return fragment
}

// Traffic are what other programs' nftables chains must let pass: what the node sends to pods and their answers, and Services.
func Traffic() []nft.Traffic {
	var needed []nft.Traffic
	for _, hook := range []nft.Hook{nft.HookIngress, nft.HookPrerouting, nft.HookInput, nft.HookForward} {
		needed = append(needed, nft.Traffic{Family: nft.FamilyIPv4, Hook: hook, InDevice: Device})
	}
	for _, hook := range []nft.Hook{nft.HookForward, nft.HookOutput, nft.HookPostrouting} {
		needed = append(needed, nft.Traffic{Family: nft.FamilyIPv4, Hook: hook, OutDevice: Device})
	}
	return needed
}
