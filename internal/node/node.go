// Package node is the node that networks are served on: its engines, each with the loop that keeps it in step with what all networks
// want, opened for the union of what the networks care for. It knows no network.
//
// A network's fragments have owners of its own: "attachment/..." for pods (attach.Key.Owner), and names that begin with the network's
// for all else.
package node

import (
	"context"
	"net/netip"
	"slices"

	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/nft"
	"weft.dev/weft/internal/nft/nftnl"
	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/ovsdb"
	"weft.dev/weft/internal/reconcile"
)

// Care is what of a node's state belongs to one network. What is found there and no fragment names is removed, once the network has
// handed over its complete state. No two networks share an entry.
type Care struct {
	// Tables are tables of nftables, and Unmanaged the chains in them whose rules are an administrator's.
	Tables    []nft.Table
	Unmanaged []nft.Chain
	// Devices are devices that the network configures, whoever makes them.
	Devices []link.Key
	// Bridges are bridges of Open vSwitch. None: the network does without, and so does a node that has no other that needs it.
	Bridges []Bridge
	// Sysctls are settings that the network needs of the node as a whole.
	Sysctls []Sysctl
}

// Bridge is a bridge of Open vSwitch that is a network's own: its ports, and its flows.
type Bridge struct {
	Name string
	// Note makes the item that carries the hash of all flows, and IsNote recognises it: the last to be written. Nil: there is none.
	Note   func(reconcile.Hash) (openflow.Key, openflow.Entry)
	IsNote func(openflow.Key) bool
	// Tables returns the names of the bridge's tables, and Object what owners of flows come from, by kind, namespace and name. Both are for
	// people who look at the flows, and may be nil; attachments' pods are found without them.
	Tables func() map[uint8]string
	Object func(reconcile.Owner) (kind, namespace, name string)
}

// Sysctl is a setting of the node as a whole: Path is below /proc/sys.
type Sysctl struct{ Path, Value string }

// Union returns the care of all.
func Union(all ...Care) Care {
	var u Care
	for _, c := range all {
		u.Tables = append(u.Tables, c.Tables...)
		u.Unmanaged = append(u.Unmanaged, c.Unmanaged...)
		u.Devices = append(u.Devices, c.Devices...)
		u.Bridges = append(u.Bridges, c.Bridges...)
		for _, s := range c.Sysctls {
			if !slices.Contains(u.Sysctls, s) {
				u.Sysctls = append(u.Sysctls, s)
			}
		}
	}
	return u
}

// The loops of a node.
type (
	// LinkLoop keeps devices, addresses, routes, neighbours and rules.
	LinkLoop = reconcile.Loop[link.Key, link.Item]
	// RuleLoop keeps tables of nftables.
	RuleLoop = reconcile.Loop[nft.Key, nft.Item]
	// TableLoop keeps one table of nftables by netlink.
	TableLoop = reconcile.Loop[nftnl.Key, nftnl.Item]
	// RowLoop keeps rows of Open vSwitch's database.
	RowLoop = reconcile.Loop[ovsdb.Key, ovsdb.Row]
	// FlowLoop keeps the flows and groups of one bridge.
	FlowLoop = reconcile.Loop[openflow.Key, openflow.Entry]
)

// Node is this node, as networks have it.
type Node struct {
	// Name is the Node object's, and BootID tells this boot from others.
	Name, BootID string
	// RunDir and StateDir are the agent's; a network has a folder of its own in each.
	RunDir, StateDir string
	// Links and Rules are in step with what all networks have handed over with Start, Apply or Set. A network's first call is Start.
	Links *LinkLoop
	Rules *RuleLoop
	// Pods makes and removes pods' interfaces.
	Pods *link.Pods
	// Switch returns Open vSwitch; it waits until its database answers. Only networks with Care.Bridges call it.
	Switch func(ctx context.Context) (*Switch, error)
	// Pass has the rules of others, such as a firewall's, let the packets of a network pass; it replaces what the network passed before.
	Pass func(ctx context.Context, network string, passages []nft.Passage) error
	// Observe has `weft diff` read back a loop of the network's own as well, under a name. A later loop of that name replaces it.
	Observe func(name string, loop *TableLoop)
	// WatchLinks calls told for every change of a device on the node that no loop made, until stop is called. told does not wait.
	WatchLinks func(told func(link.Drift)) (stop func())
	// Ranges returns the IPv4 ranges that the node routes by other devices than the named one, without default routes.
	Ranges func(except string) ([]netip.Prefix, error)
	// Elsewhere says where the node sends packets to an address, unless that is by the named device or a default route: "" then.
	Elsewhere func(addr netip.Addr, except string) (string, error)
}

// Switch is Open vSwitch on this node.
type Switch struct {
	// Datapath is the type of new bridges: ovsdb.DatapathSystem or ovsdb.DatapathNetdev.
	Datapath string
	// Database is the engine below Rows, for what it tells beside.
	Database *ovsdb.Engine
	Rows     *RowLoop
	// Bridges are the bridges in care, by name.
	Bridges map[string]*Flows
}

// Flows are the flows of one bridge.
type Flows struct {
	Engine *openflow.Engine
	Loop   *FlowLoop
}
