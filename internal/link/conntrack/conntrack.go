package conntrack

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/link/rtnetlink"
)

// Tracked is a connection that the kernel tracks.
type Tracked struct {
	// Source opened the connection and Destination answers. Both are untranslated addresses: the pod behind a Service, not the Service.
	Source, Destination netip.Addr
	// Protocol is the number in the IP header, and Port the port of Destination, 0 for protocols without ports.
	Protocol uint8
	Port     uint16
	// Original is the address and the port to which the connection was opened, before translation: the Service, not the pod behind it.
	Original netip.AddrPort
}

// Table is the kernel's connection tracking in one network namespace, without the zones, which belong to Open vSwitch.
type Table struct {
	handle *netlink.Handle
	// sockets has the socket for connection tracking, in the form that the netlink package needs.
	sockets map[int]*nl.SocketHandle
}

// New returns the connection tracking of the network namespace at a path; "" is the caller's. The caller must close it.
func New(path string) (*Table, error) {
	space := netns.None()
	if path != "" {
		var err error
		if space, err = netns.GetFromPath(path); err != nil {
			return nil, fmt.Errorf("network namespace %s: %w", path, err)
		}
		defer func() { _ = space.Close() }() // the sockets stay in the namespace
	}
	handle, err := netlink.NewHandleAt(space, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("connection tracking: %w", err)
	}
	socket, err := nl.GetNetlinkSocketAt(space, netns.None(), unix.NETLINK_NETFILTER)
	if err != nil {
		handle.Close()
		return nil, fmt.Errorf("connection tracking: %w", err)
	}
	return &Table{handle, map[int]*nl.SocketHandle{unix.NETLINK_NETFILTER: {Socket: socket}}}, nil
}

// Close closes its sockets.
func (c *Table) Close() {
	c.handle.Close()
	for _, socket := range c.sockets {
		socket.Close()
	}
}

// Flush removes the connections for which ends returns true, and returns their number. It walks the kernel's whole table once: about 10 ms of
// CPU time with the usual 262,144 buckets, and some microseconds for each connection of the namespace.
func (c *Table) Flush(ends func(Tracked) bool) (removed int, err error) {
	_, removed, err = c.flush(narrow{}, func(of *connection) bool { return ends(of.tracked()) })
	return removed, err
}

// flush removes the connections that ends selects from a dump restricted by of. It leaves connections in zones alone, which belong to the
// switch. It returns how many connections the dump had, and how many it removed.
func (c *Table) flush(of narrow, ends func(*connection) bool) (dumped, removed int, err error) {
	for try := 1; ; try++ {
		all, n, failed := c.flushOnce(of, ends)
		dumped = all
		removed += n
		if errors.Is(failed, netlink.ErrDumpInterrupted) && try < rtnetlink.DumpAttempts {
			continue
		}
		if failed != nil {
			failed = fmt.Errorf("flushing connections: %w", failed)
		}
		return dumped, removed, failed
	}
}

func (c *Table) flushOnce(of narrow, ends func(*connection) bool) (dumped, removed int, err error) {
	var found [][]byte
	request := c.request(nl.IPCTNL_MSG_CT_GET, unix.NLM_F_DUMP, of.family)
	for _, attribute := range of.attributes {
		request.AddData(attribute)
	}
	errs := []error{request.ExecuteIter(unix.NETLINK_NETFILTER, 0, func(message []byte) bool {
		dumped++
		if t := parseConnection(message[min(nl.SizeofNfgenmsg, len(message)):]); t.zone == 0 && len(message) > nl.SizeofNfgenmsg && ends(&t) {
			found = append(found, message)
		}
		return true
	})}
	for _, message := range found {
		request := c.request(nl.IPCTNL_MSG_CT_DELETE, unix.NLM_F_ACK, message[0])
		request.AddRawData(message[nl.SizeofNfgenmsg:])
		_, err := request.Execute(unix.NETLINK_NETFILTER, 0)
		switch {
		case err == nil:
			removed++
		case !errors.Is(err, unix.ENOENT): // ENOENT: it ended by itself
			errs = append(errs, err)
		}
	}
	return dumped, removed, errors.Join(errs...)
}

func (c *Table) request(operation, flags int, family uint8) *nl.NetlinkRequest {
	request := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_CTNETLINK<<8|operation, flags)
	request.AddData(&nl.Nfgenmsg{NfgenFamily: family, Version: nl.NFNETLINK_V0})
	request.Sockets = c.sockets
	return request
}

// Own returns the addresses of the namespace's devices.
func (c *Table) Own() (map[netip.Addr]bool, error) {
	list, err := rtnetlink.Dump(func() ([]netlink.Addr, error) { return c.handle.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("addresses of the node: %w", err)
	}
	own := make(map[netip.Addr]bool, len(list))
	for i := range list {
		own[rtnetlink.ToAddr(list[i].IP)] = true
	}
	return own, nil
}

// tracked returns the connection as users of Conntrack see it.
func (c *connection) tracked() Tracked {
	t := Tracked{Source: c.from, Destination: c.by, Protocol: c.protocol, Original: netip.AddrPortFrom(c.to, c.port)}
	if p := c.protocol; p == unix.IPPROTO_TCP || p == unix.IPPROTO_UDP || p == unix.IPPROTO_SCTP {
		t.Port = c.byPort
	}
	return t
}
