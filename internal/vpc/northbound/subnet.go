package northbound

import (
	"fmt"
	"net/netip"
	"strconv"

	"weft.dev/weft/internal/ovn"
	"weft.dev/weft/internal/vpc/objects"
)

// Priorities of a subnet's own ACLs, as in Kube-OVN.
const (
	aclPrivateDrop  = 1000
	aclPrivateAllow = 1001
	aclEastWest     = 1900
	// aclIsolated is above all rules of users, and aclTracked below all others: a NetworkPolicy allows nothing that a rule of the Subnet drops.
	aclIsolated = 32767
	aclTracked  = 1
)

// Rows are rows by their keys.
type Rows map[ovn.Key]ovn.Row

// Switch compiles a subnet: its switch, the port pair to the VPC's router, and its ACLs.
func Switch(subnet *objects.Subnet, vpc objects.Meta) Rows {
	rows, owner := Rows{}, subnet.Owner()
	key := SwitchKey(subnet.UID)
	config := map[string]string{}
	if subnet.TunnelKey != 0 {
		config["requested-tnl-key"] = strconv.Itoa(subnet.TunnelKey)
	}
	rows[key] = ovn.Row{
		Owner: owner, Text: map[string]string{"name": subnet.Name},
		Map: map[string]map[string]string{"other_config": config},
	}
	options := map[string]string{}
	if subnet.RouteTable != "" {
		options["route_table"] = subnet.RouteTable
	}
	port := routerPortName(vpc.Name, subnet.Name)
	rows[ovn.UUID(ovn.RouterPort, subnet.UID, vpc.UID)] = ovn.Row{
		Owner: owner, Parent: RouterKey(vpc.UID),
		Text: map[string]string{"name": port, "mac": MAC(subnet.Gateway)},
		Set:  map[string][]string{"networks": {netip.PrefixFrom(subnet.Gateway, subnet.Prefix.Bits()).String()}},
		Map:  map[string]map[string]string{"options": options},
	}
	rows[ovn.UUID(ovn.SwitchPort, subnet.UID, "router", vpc.UID)] = ovn.Row{
		Owner: owner, Parent: key,
		Text: map[string]string{"name": switchRouterPortName(subnet.Name, vpc.Name), "type": "router"},
		Set:  map[string][]string{"addresses": {"router"}},
		Map:  map[string]map[string]string{"options": {"router-port": port}},
	}
	for name, acl := range acls(subnet) {
		rows[ovn.UUID(ovn.ACL, subnet.UID, name)] = acl.row(owner, key)
	}
	return rows
}

// acl is a rule before it is a row.
type acl struct {
	direction, match, action string
	priority                 int
}

func (a acl) row(owner string, parent ovn.Key) ovn.Row {
	return ovn.Row{
		Owner: owner, Parent: parent,
		Text:   map[string]string{"direction": a.direction, "match": a.match, "action": a.action},
		Number: map[string]int{"priority": a.priority},
	}
}

const (
	fromPort = "from-lport"
	toPort   = "to-lport"
)

// acls returns the subnet's rules, by a name that identifies the purpose of each. A user's rule is named by its content, so that a rule
// that moves in the list stays the same row.
//
// Rules of direction to-lport see packets to the router's port as well, so a private subnet is closed in both directions.
//
// Rules that allow are stateful (allow-related): without one, OVN evaluates each packet separately, and a drop would also drop the replies
// to connections of the subnet's own pods.
func acls(subnet *objects.Subnet) map[string]acl {
	rules := map[string]acl{}
	own := subnet.Prefix
	if subnet.Private {
		within := fmt.Sprintf("ip4.src == %s && ip4.dst == %s", own, own)
		rules["private/drop"] = acl{toPort, "ip", "drop", aclPrivateDrop}
		rules["private/own"] = acl{toPort, within, "allow-related", aclPrivateAllow}
		for _, other := range subnet.Allow {
			pair := fmt.Sprintf("(ip4.src == %s && ip4.dst == %s) || (ip4.src == %s && ip4.dst == %s)", other, own, own, other)
			rules["private/allow/"+other.String()] = acl{toPort, pair, "allow-related", aclPrivateAllow}
		}
	}
	if subnet.EastWest {
		within := fmt.Sprintf("ip4.src == %s && ip4.dst == %s", own, own)
		rules["east-west/from"] = acl{fromPort, within, "allow-related", aclEastWest}
		rules["east-west/to"] = acl{toPort, within, "allow-related", aclEastWest}
	}
	for _, rule := range subnet.ACLs {
		direction := fromPort
		if rule.Ingress {
			direction = toPort
		}
		name := fmt.Sprintf("user/%s/%d/%s/%s", direction, rule.Priority, rule.Action, rule.Match)
		rules[name] = acl{direction, rule.Match, rule.Action, min(max(rule.Priority, aclTracked+1), aclIsolated-1)}
	}
	return rules
}

// Port is an address of a subnet for an interface.
type Port struct {
	// Owner is the object that the port is for; empty: the subnet, for ports that are created before their pods.
	Owner string
	Addr  netip.Addr
	// MAC is the interface's; empty: the one derived from the address.
	MAC string
	// Gateway reports that the interface is a NAT gateway's, which also sends packets with other source addresses.
	Gateway bool
}

// SwitchPort compiles a logical port of the subnet.
func SwitchPort(subnet *objects.Subnet, port Port) (ovn.Key, ovn.Row) {
	owner, mac := port.Owner, port.MAC
	if owner == "" {
		owner = subnet.Owner()
	}
	if mac == "" {
		mac = MAC(port.Addr)
	}
	addresses := []string{mac + " " + port.Addr.String()}
	row := ovn.Row{
		Owner: owner, Parent: SwitchKey(subnet.UID),
		Text: map[string]string{"name": PortName(subnet.Name, port.Addr)},
		Set:  map[string][]string{"addresses": addresses},
	}
	if !port.Gateway {
		row.Set["port_security"] = addresses
	}
	return ovn.UUID(ovn.SwitchPort, subnet.UID, port.Addr.String()), row
}

// Closed has the directions in which a pod is closed.
type Closed struct{ Ingress, Egress bool }

// Isolation compiles the rules that close an address of the subnet. Replies to connections in the other direction pass: a rule that tracks
// them prevents OVN from evaluating each packet separately.
func Isolation(subnet *objects.Subnet, addr netip.Addr, closed Closed) Rows {
	rows := Rows{}
	if !closed.Ingress && !closed.Egress {
		return rows
	}
	port := strconv.Quote(PortName(subnet.Name, addr))
	add := func(closed bool, direction, side string) {
		rule, name := acl{direction, side + " == " + port + " && ip", "allow-related", aclTracked}, "tracked"
		if closed {
			rule.action, rule.priority, name = "drop", aclIsolated, "isolated"
		}
		rows[ovn.UUID(ovn.ACL, subnet.UID, name, direction, addr.String())] = rule.row(subnet.Owner(), SwitchKey(subnet.UID))
	}
	add(closed.Ingress, toPort, "outport")
	add(closed.Egress, fromPort, "inport")
	return rows
}
