// Package node is the node on which networks are served: its engines, each with the loop that keeps it in step with what all networks want.
// The engines are opened for the union of the networks' cares. The package knows no network.
//
// A network uses its own owners for its fragments: "attachment/..." for pods (attach.Key.Owner), and names that begin with the network's
// name for everything else.
package node

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/link/notify"
	"weft.dev/weft/internal/link/podveth"
	"weft.dev/weft/internal/nft"
	"weft.dev/weft/internal/nft/nftnl"
	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/openflow/bridge"
	"weft.dev/weft/internal/ovsdb"
	"weft.dev/weft/internal/reconcile"
)

// Care is the part of a node's state that belongs to one network. State in it that is in no fragment is removed, once the network has
// handed over its complete state. No two networks share an entry.
type Care struct {
	// Tables are nftables tables. Unmanaged are chains in them whose rules are an administrator's.
	Tables    []nft.Table
	Unmanaged []nft.Chain
	// Apart are nftables tables of the network that its own loops maintain.
	Apart []nft.Table
	// Devices are devices that the network configures; other programs may create them.
	Devices []link.Key
	// Bridges are bridges of Open vSwitch. None: the network does not need it; a node needs it if any of its networks does.
	Bridges []Bridge
	// Sysctls are settings of the whole node that the network needs.
	Sysctls []Sysctl
}

// Bridge is a bridge of Open vSwitch that belongs to one network, with its ports and flows.
type Bridge struct {
	Name string
	// Note returns the item that stores the hash of all flows, which is written last; IsNote recognises it. Nil: there is none.
	Note   func(reconcile.Hash) (openflow.Key, openflow.Entry)
	IsNote func(openflow.Key) bool
	// Tables returns the names of the bridge's tables. Object returns the object from which an owner of flows comes, by kind, namespace and
	// name. Both are for commands that print flows, and may be nil; the pods of attachments are found without them.
	Tables func() map[uint8]string
	Object func(reconcile.Owner) (kind, namespace, name string)
}

// Sysctl is a setting of the whole node. Path is below /proc/sys.
type Sysctl struct{ Path, Value string }

// Union returns the union of several cares.
func Union(all ...Care) Care {
	var u Care
	for _, c := range all {
		u.Tables = append(u.Tables, c.Tables...)
		u.Unmanaged = append(u.Unmanaged, c.Unmanaged...)
		u.Apart = append(u.Apart, c.Apart...)
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
	// LinkLoop manages devices, addresses, routes, neighbours and rules.
	LinkLoop = reconcile.Loop[link.Key, link.Item]
	// RuleLoop manages nftables tables.
	RuleLoop = reconcile.Loop[nft.Key, nft.Item]
	// TableLoop manages one nftables table by netlink.
	TableLoop = reconcile.Loop[nftnl.Key, nftnl.Item]
	// RowLoop manages rows of Open vSwitch's database.
	RowLoop = reconcile.Loop[ovsdb.Key, ovsdb.Row]
	// FlowLoop manages the flows and groups of one bridge.
	FlowLoop = reconcile.Loop[openflow.Key, openflow.Entry]
)

// Node is this node, as the networks use it.
type Node struct {
	// Name is the name of the Node object. BootID identifies this boot.
	Name, BootID string
	// RunDir and StateDir are the agent's folders. A network has its own folder in each.
	RunDir, StateDir string
	// Ports is the path of the network namespace with the far ends of pre-plugged ports (podlink.Preplugged). The CNI plugin creates it.
	Ports string
	// Verify is how often a network compares what it keeps on the node in no loop and gets no event of. 0: never.
	Verify time.Duration
	// Reserved says for what a port of the node is kept from pods: "" if it is not. Nil: none is.
	Reserved func(port cni.HostPort) string
	// Links and Rules contain what all networks have handed over with Start, Apply or Set. A network's first call is Start.
	Links *LinkLoop
	Rules *RuleLoop
	// Pods creates and removes pods' interfaces.
	Pods *podveth.Pods
	// Switch returns Open vSwitch; it waits until its database answers. Only networks with Care.Bridges call it.
	Switch func(ctx context.Context) (*Switch, error)
	// Pass adds exceptions for a network's packets to the rules of other programs, such as a firewall. It replaces the network's previous
	// kinds of traffic.
	Pass func(ctx context.Context, network string, traffic []nft.Traffic) error
	// Observe includes a network's own loop in `weft diff`, under a name. It replaces an earlier loop of that name.
	Observe func(name string, loop *TableLoop)
	// WatchLinks calls callback for every change of a device on the node that no loop made, until stop is called. callback must not block.
	WatchLinks func(callback func(notify.Drift)) (stop func())
	// Ranges returns the IPv4 ranges that the node routes by devices other than the named one, without default routes.
	Ranges func(except string) ([]netip.Prefix, error)
	// Elsewhere returns where the node sends packets to an address; "" if that is by the named device or a default route.
	Elsewhere func(addr netip.Addr, except string) (string, error)
}

// Switch is Open vSwitch on this node.
type Switch struct {
	// Datapath is the type of new bridges: ovsdb.DatapathSystem or ovsdb.DatapathNetdev.
	Datapath string
	// Database is the engine below Rows, for the other information that it has.
	Database *ovsdb.Engine
	Rows     *RowLoop
	// Bridges are the bridges of the networks' cares, by name.
	Bridges map[string]*Flows
	// Settle waits until the datapath uses the flows that are committed: until then, packets meet those of before.
	Settle func(ctx context.Context) error
}

// Flows are the flows of one bridge.
type Flows struct {
	Engine *bridge.Engine
	Loop   *FlowLoop
}
