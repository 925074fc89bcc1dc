package stage

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"

	"github.com/vishvananda/netlink"

	"weft.dev/weft/lab/ground"
)

// podGroup is the link group of pods' host veths: packets from them are for the switch only.
const podGroup = 77

// Client is a namespace behind a port of a switch.
type Client struct {
	Netns string
	Addr  netip.Addr
}

// Attach makes a namespace whose eth0 has an address, and is the switch's port of that number. It has a permanent neighbour entry for
// every other address, so that no ARP is needed.
func (w *Switch) Attach(ctx context.Context, ofport uint32, addr netip.Prefix, mac func(netip.Addr) net.HardwareAddr, others ...netip.Addr) (Client, error) {
	name := fmt.Sprintf("%s-%d", w.place.Name, ofport)
	space, err := ground.NewSpace(ctx, w.stage.group, w.stage.self(), spaceName(name), ground.Hold{})
	if err != nil {
		return Client{}, err
	}
	w.clients = append(w.clients, space)
	port := "v" + strconv.Itoa(int(ofport))
	err = ground.Connect(mtu, ground.End{Space: &w.Space, Name: port, Group: podGroup}, ground.End{Space: &space, Name: "eth0", Addr: addr})
	if err != nil {
		return Client{}, err
	}
	argv := []string{"ovs-vsctl", "--timeout=30", "add-port", Bridge, port, "--", "set", "Interface", port, fmt.Sprintf("ofport_request=%d", ofport)}
	if _, err := w.Run(ctx, argv...); err != nil {
		return Client{}, err
	}
	return Client{Netns: space.NetPath(), Addr: addr.Addr()}, inNetns(space.NetPath(), func(h *netlink.Handle) error {
		return introduce(h, addr.Addr(), mac, others)
	})
}

const mtu = 1500

// introduce sets eth0's MAC address by its address, and adds the neighbour entries.
func introduce(h *netlink.Handle, addr netip.Addr, mac func(netip.Addr) net.HardwareAddr, others []netip.Addr) error {
	eth0, err := h.LinkByName("eth0")
	if err != nil {
		return fmt.Errorf("find eth0: %w", err)
	}
	if err := h.LinkSetHardwareAddr(eth0, mac(addr)); err != nil {
		return fmt.Errorf("set the address of eth0: %w", err)
	}
	for _, other := range others {
		route := &netlink.Route{LinkIndex: eth0.Attrs().Index, Scope: netlink.SCOPE_LINK, Dst: &net.IPNet{IP: other.AsSlice(), Mask: net.CIDRMask(other.BitLen(), other.BitLen())}}
		if err := h.RouteReplace(route); err != nil {
			return fmt.Errorf("route to %s: %w", other, err)
		}
		neighbour := &netlink.Neigh{LinkIndex: eth0.Attrs().Index, State: netlink.NUD_PERMANENT, IP: other.AsSlice(), HardwareAddr: mac(other)}
		if err := h.NeighSet(neighbour); err != nil {
			return fmt.Errorf("set the neighbour entry of %s: %w", other, err)
		}
	}
	return nil
}
