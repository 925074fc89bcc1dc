package podlink

import (
	"context"
	"net"
	"net/netip"
)

// MacvlanAliasPrefix starts the alias of every [Macvlan]; its owner follows.
const MacvlanAliasPrefix = "weft-macvlan/"

// Macvlan is an additional interface of a pod on a device of the node: it is in the network of that device.
type Macvlan struct {
	// Netns is the path of the pod's network namespace, and Name the interface's name in it.
	Netns, Name string
	// Parent is the device of the node.
	Parent string
	// Owner is the object that requests it; it follows MacvlanAliasPrefix in the alias. At most 200 bytes.
	Owner string
	// Mode is private (no macvlan of a device reaches another one, or the device itself), bridge, vepa or passthru. Empty: private.
	Mode string
	// MTU in bytes; 0 is the parent's MTU.
	MTU int
	// TxOffloadOff turns transmit offloads off, for a network that reads packets without offloading.
	TxOffloadOff bool
	// Addresses is the exact list of its IPv4 addresses, without routes to their prefixes; others are removed. Nil: another program configures
	// them, and they are left alone.
	Addresses []netip.Prefix
}

// MacvlanParent is a device on which macvlans can be created.
type MacvlanParent struct {
	Name string
	MTU  int
	// Addresses are its IPv4 addresses without [link.Address] items.
	Addresses []netip.Addr
	// Group is its device group; Loopback reports the loopback device, and Weft that its alias is one of Weft's.
	Group          uint32
	Loopback, Weft bool
}

// Macvlans creates, checks and removes macvlans of pods. *[podveth.Pods] does it in the kernel, *[Fake] in memory.
type Macvlans interface {
	// MacvlanParent returns the device of that name, or, if the name is empty, that of the node's IPv4 default route. Without such a device
	// the error is ErrNoDevice.
	MacvlanParent(ctx context.Context, name string) (MacvlanParent, error)
	// CreateMacvlan creates a macvlan, sets it up, and returns its MAC address. An existing one is completed, also in its MTU.
	// ErrForeign names a conflicting interface, ErrNoDevice and ErrNoNamespace what is missing.
	CreateMacvlan(ctx context.Context, m Macvlan) (net.HardwareAddr, error)
	// KeepMacvlanAddresses removes from a macvlan the addresses for which keep is false. It uses only its owner, name and namespace. It is no error
	// if the macvlan or its namespace does not exist, or if the interface belongs to another owner.
	KeepMacvlanAddresses(ctx context.Context, m Macvlan, keep func(netip.Prefix) bool) error
	// CheckMacvlan returns nil if the macvlan is as CreateMacvlan leaves it, else a *Difference.
	CheckMacvlan(ctx context.Context, m Macvlan) error
	// DeleteMacvlan removes a macvlan. It is no error if it or its namespace does not exist, or if the interface belongs to another owner.
	DeleteMacvlan(ctx context.Context, m Macvlan) error
}

// Validate reports whether the macvlan can be created.
func (m *Macvlan) Validate() error {
	return (&Pair{HostName: m.Parent, PodName: m.Name, Netns: m.Netns, Owner: m.Owner}).Validate()
}

// Alias is the alias of the interface.
func (m *Macvlan) Alias() string { return MacvlanAliasPrefix + m.Owner }
