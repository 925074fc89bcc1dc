package link

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Tracked is a connection that the kernel tracks.
type Tracked struct {
	// Source is the side that began it, and Destination the side that answers, each as it is without translation: the pod behind a
	// Service, not the Service.
	Source, Destination netip.Addr
	// Protocol is the number in the IP header, and Port the port of Destination, 0 for protocols without ports.
	Protocol uint8
	Port     uint16
}

// Conntrack is the kernel's connection tracking in one network namespace, except for the zones, which are Open vSwitch's.
type Conntrack struct{ handle *netlink.Handle }

// NewConntrack returns the connection tracking of the network namespace at a path; "" is the caller's. The caller must Close it.
func NewConntrack(path string) (*Conntrack, error) {
	space := netns.None()
	if path != "" {
		var err error
		if space, err = netns.GetFromPath(path); err != nil {
			return nil, fmt.Errorf("network namespace %s: %w", path, err)
		}
		defer func() { _ = space.Close() }() // the sockets stay in the namespace
	}
	handle, err := netlink.NewHandleAt(space, unix.NETLINK_NETFILTER, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("connection tracking: %w", err)
	}
	return &Conntrack{handle}, nil
}

// Close closes its sockets.
func (c *Conntrack) Close() { c.handle.Close() }

// dumpTries bounds how often a listing is repeated that changes of the table interrupted.
const dumpTries = 5

// Flush removes the connections for which ends returns true, and returns their number.
func (c *Conntrack) Flush(ends func(Tracked) bool) (removed int, err error) {
	for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
		for try := 1; ; try++ {
			n, failed := c.handle.ConntrackDeleteFilters(netlink.ConntrackTable, family, trackedFilter(ends))
			removed += int(n) //nolint:gosec // entries of a table
			if errors.Is(failed, netlink.ErrDumpInterrupted) && try < dumpTries {
				continue
			}
			err = errors.Join(err, failed)
			break
		}
	}
	if err != nil {
		return removed, fmt.Errorf("flushing connections: %w", err)
	}
	return removed, nil
}

// Own returns the addresses of the namespace's devices.
func (c *Conntrack) Own() (map[netip.Addr]bool, error) {
	list, err := dump(func() ([]netlink.Addr, error) { return c.handle.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("addresses of the node: %w", err)
	}
	own := make(map[netip.Addr]bool, len(list))
	for i := range list {
		own[toAddr(list[i].IP)] = true
	}
	return own, nil
}

type trackedFilter func(Tracked) bool

// MatchConntrackFlow implements netlink.CustomConntrackFilter.
func (f trackedFilter) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	if flow.Zone != 0 {
		return false
	}
	t := Tracked{Source: toAddr(flow.Forward.SrcIP), Destination: toAddr(flow.Reverse.SrcIP), Protocol: flow.Forward.Protocol}
	switch t.Protocol {
	case unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_SCTP:
		t.Port = flow.Reverse.SrcPort
	}
	return f(t)
}
