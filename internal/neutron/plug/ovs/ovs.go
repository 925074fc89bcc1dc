// Package ovs connects pods to Open vSwitch as KubeStack and Nova's hybrid plug do: with a Linux bridge between the pod and the integration
// bridge, on which Neutron's iptables_hybrid firewall filters.
//
// For a port whose UUID begins with x (11 characters), the chain is: pod's eth0, tapx, bridge qbrx, qvbx, qvox on the
// integration bridge. All names have 14 characters.
package ovs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"

	"weft.dev/weft/internal/neutron/plug"
	"weft.dev/weft/internal/ovsdb"
	"weft.dev/weft/internal/reconcile"
)

// Plugin connects pods to one integration bridge. It works in the network namespace of its process.
type Plugin struct {
	rows   *ovsdb.Engine
	bridge string
}

// Open connects to Open vSwitch at endpoint; "" is the usual one.
func Open(ctx context.Context, endpoint, bridge string) (*Plugin, error) {
	rows, err := ovsdb.Open(ctx, ovsdb.Config{Endpoint: endpoint, Program: program})
	if err != nil {
		return nil, fmt.Errorf("reach Open vSwitch: %w", err)
	}
	return &Plugin{rows: rows, bridge: bridge}, nil
}

// Close closes the connection to Open vSwitch.
func (p *Plugin) Close() { p.rows.Close() }

// idLength is how many characters of a port's UUID are in the names of its devices.
const idLength = 11

// chain has the names of a port's devices.
type chain struct{ tap, bridge, lower, upper string }

var (
	errNoUUID = errors.New("the port's id is not a UUID")
	errAlike  = errors.New("id begins alike: delete one of the two")
)

func chainOf(portID string) (chain, error) {
	hex := func(r rune) bool { return r >= '0' && r <= '9' || r >= 'a' && r <= 'f' || r == '-' }
	if len(portID) < idLength || strings.TrimLeftFunc(portID, hex) != "" {
		return chain{}, fmt.Errorf("port %.64q: %w", portID, errNoUUID)
	}
	x := portID[:idLength]
	return chain{tap: "tap" + x, bridge: "qbr" + x, lower: "qvb" + x, upper: "qvo" + x}, nil
}

// Setup creates the chain, the row on the integration bridge, and the pod's interface.
func (p *Plugin) Setup(ctx context.Context, pod plug.Pod) (made bool, err error) {
	names, err := chainOf(pod.Port.ID)
	if err != nil {
		return false, err
	}
	row, err := p.row(ctx, names, pod.Port.ID)
	if err != nil {
		return false, err
	}
	connected := row && (pod.NetNS == "" || exists(names.tap))
	if err := p.setup(ctx, names, pod); err != nil {
		if !connected {
			err = errors.Join(err, p.Teardown(context.WithoutCancel(ctx), pod.Port.ID))
		}
		return false, err
	}
	return !connected, nil
}

// exists reports whether a device exists. A pod's pair ends with the pod's network namespace.
func exists(name string) bool {
	_, err := netlink.LinkByName(name)
	return err == nil
}

// program marks the provider's rows: an agent on the node leaves them alone.
const program = "provider"

// ifaceID is the key in which Neutron's agent and ovn-controller look for a port's UUID.
const ifaceID = "iface-id"

// row reports whether a port has its row, which Setup creates last. It returns errAlike if the names are another port's: two UUIDs may
// begin with the same 11 characters.
func (p *Plugin) row(ctx context.Context, names chain, portID string) (bool, error) {
	rows, err := p.rows.Read(ctx)
	if err != nil {
		return false, err
	}
	row, ok := rows[ovsdb.PortKey(names.upper)].(*ovsdb.Port)
	if ok && row.ExternalIDs[ifaceID] != portID {
		return false, fmt.Errorf("port %s: device %s is port %s's, whose %w", portID, names.upper, row.ExternalIDs[ifaceID], errAlike)
	}
	return ok, nil
}

func (p *Plugin) setup(ctx context.Context, names chain, pod plug.Pod) error {
	h, err := netlink.NewHandle()
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	defer h.Close()
	if err := hostSide(h, names, pod.Port.MTU); err != nil {
		return err
	}
	if pod.NetNS != "" {
		datapath, err := p.rows.Datapath(ctx)
		if err != nil {
			return err
		}
		if err := podSide(h, names, pod, datapath.Kernel); err != nil {
			return err
		}
	}
	return p.rows.Commit(ctx, reconcile.Change[ovsdb.Key, ovsdb.Row]{Set: map[ovsdb.Key]ovsdb.Row{
		ovsdb.PortKey(names.upper): &ovsdb.Port{
			Bridge: p.bridge, Name: names.upper, ExternalIDs: map[string]string{
				ifaceID: pod.Port.ID, "attached-mac": pod.Port.MAC.String(), "vm-id": pod.Name + "_" + pod.Namespace,
				"iface-status": "active", ovsdb.OwnerID: "port/" + pod.Port.ID, ovsdb.ProgramID: program,
			},
		},
	}})
}

// hostSide creates the bridge and the pair to the switch. The bridge's settings are Nova's: addresses do not age, no spanning tree, no
// multicast filter, and the host has no IPv6 address on any of the devices.
func hostSide(h *netlink.Handle, names chain, mtu int) error {
	if err := veth(h, names.lower, names.upper, mtu); err != nil {
		return err
	}
	bridge, err := makeBridge(h, names.bridge, mtu)
	if err != nil {
		return err
	}
	for _, name := range []string{names.bridge, names.lower, names.upper} {
		if err := noIPv6(name); err != nil {
			return err
		}
	}
	lower, err := h.LinkByName(names.lower)
	if err != nil {
		return fmt.Errorf("find %s: %w", names.lower, err)
	}
	if err := h.LinkSetMaster(lower, bridge); err != nil {
		return fmt.Errorf("put %s into %s: %w", names.lower, names.bridge, err)
	}
	return up(h, names.lower, names.upper, names.bridge)
}

func up(h *netlink.Handle, names ...string) error {
	for _, name := range names {
		link, err := h.LinkByName(name)
		if err != nil {
			return fmt.Errorf("find %s: %w", name, err)
		}
		if err := h.LinkSetUp(link); err != nil {
			return fmt.Errorf("set %s up: %w", name, err)
		}
	}
	return nil
}

func veth(h *netlink.Handle, name, peer string, mtu int) error {
	if _, err := h.LinkByName(name); err == nil {
		return nil
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = name, mtu
	if err := h.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: peer}); err != nil {
		return fmt.Errorf("make %s and %s: %w", name, peer, err)
	}
	return nil
}

func makeBridge(h *netlink.Handle, name string, mtu int) (netlink.Link, error) {
	if link, err := h.LinkByName(name); err == nil {
		return link, nil
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = name, mtu
	ageing, snooping := uint32(0), false
	if err := h.LinkAdd(&netlink.Bridge{LinkAttrs: attrs, AgeingTime: &ageing, MulticastSnooping: &snooping}); err != nil {
		return nil, fmt.Errorf("make bridge %s: %w", name, err)
	}
	link, err := h.LinkByName(name)
	if err != nil {
		return nil, fmt.Errorf("find bridge %s: %w", name, err)
	}
	return link, nil
}

// noIPv6 keeps the host from having addresses on a device. A kernel without IPv6 has no such setting.
func noIPv6(name string) error {
	err := os.WriteFile(filepath.Join("/proc/sys/net/ipv6/conf", name, "disable_ipv6"), []byte("1"), 0)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("turn IPv6 off on %s: %w", name, err)
	}
	return nil
}

// Teardown removes a port's row and devices.
func (p *Plugin) Teardown(ctx context.Context, portID string) error {
	names, err := chainOf(portID)
	if err != nil {
		return nil //nolint:nilerr // such a port never got a chain
	}
	switch _, err := p.row(ctx, names, portID); {
	case errors.Is(err, errAlike):
		return nil // the devices are another port's
	case err != nil:
		return err
	}
	err = p.rows.Commit(ctx, reconcile.Change[ovsdb.Key, ovsdb.Row]{Delete: map[ovsdb.Key]ovsdb.Row{
		ovsdb.PortKey(names.upper): &ovsdb.Port{Bridge: p.bridge, Name: names.upper},
	}})
	h, openErr := netlink.NewHandle()
	if openErr != nil {
		return errors.Join(err, fmt.Errorf("open netlink: %w", openErr))
	}
	defer h.Close()
	for _, name := range []string{names.lower, names.tap, names.bridge} {
		err = errors.Join(err, remove(h, name))
	}
	return err
}

func remove(h *netlink.Handle, name string) error {
	link, err := h.LinkByName(name)
	if _, none := errors.AsType[netlink.LinkNotFoundError](err); none {
		return nil
	}
	if err != nil {
		return fmt.Errorf("find %s: %w", name, err)
	}
	if err := h.LinkDel(link); err != nil {
		return fmt.Errorf("remove %s: %w", name, err)
	}
	return nil
}
