package marked

import (
	"errors"
	"fmt"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/link/devconf"
	"weft.dev/weft/internal/link/rtnetlink"
)

// reader reads what is managed in the session's namespace.
type reader struct {
	*session
	state map[link.Key]link.Item
	links []netlink.Link
	// names are the devices by index, and cared are those that are managed.
	names map[int]string
	cared map[int]bool
}

// read adds to the state.
func (r *reader) read() error {
	var err error
	if r.handle, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
		return fmt.Errorf("opening a netlink socket: %w", err)
	}
	defer r.handle.Close()
	if r.links, err = rtnetlink.ListLinks(nil); err != nil {
		return err
	}
	r.names, r.cared = map[int]string{}, map[int]bool{}
	for _, dev := range r.links {
		attrs := dev.Attrs()
		r.names[attrs.Index] = attrs.Name
		device, veth := link.Key{Netns: r.path, Kind: link.KindDevice, Name: attrs.Name}, link.Key{Netns: r.path, Kind: link.KindVeth, Name: attrs.Name}
		owner, marked := strings.CutPrefix(attrs.Alias, link.AliasPrefix)
		if marked || r.engine.care.Has(device) {
			item, err := r.device(dev, owner)
			if errors.Is(err, unix.ENODEV) {
				continue // it was deleted meanwhile
			}
			if err != nil {
				return err
			}
			r.cared[attrs.Index], r.state[device] = true, item
		}
		if dev.Type() == "veth" && r.engine.care.Has(veth) {
			r.state[veth] = r.veth(dev)
		}
	}
	if err := r.readBridges(); err != nil {
		return err
	}
	routes, err := rtnetlink.ReadRoutes(r.handle, r.names)
	if err != nil {
		return err
	}
	for _, route := range routes {
		route.Netns = r.path
		r.state[route.Key()] = route
	}
	return errors.Join(r.readAddresses(), r.readNeighbours(), r.readRules())
}

func (r *reader) device(dev netlink.Link, owner string) (*link.Device, error) {
	item, err := devconf.ReadDevice(r.handle, dev)
	if err != nil {
		return nil, err
	}
	item.Netns, item.Owner = r.path, owner
	return item, nil
}

func (r *reader) readNeighbours() error {
	list, err := rtnetlink.Dump(func() ([]netlink.Neigh, error) { return r.handle.NeighList(0, netlink.FAMILY_ALL) })
	if err != nil {
		return fmt.Errorf("listing neighbours: %w", err)
	}
	for i := range list {
		entry := &list[i]
		known := entry.Family == netlink.FAMILY_V4 || entry.Family == netlink.FAMILY_V6
		if !known || !r.cared[entry.LinkIndex] || entry.State&netlink.NUD_PERMANENT == 0 {
			continue
		}
		item := &link.Neighbour{Netns: r.path, Device: r.names[entry.LinkIndex], Address: rtnetlink.ToAddr(entry.IP), MAC: entry.HardwareAddr}
		r.state[item.Key()] = item
	}
	return nil
}

func (r *reader) readRules() error {
	list, err := rtnetlink.Dump(func() ([]netlink.Rule, error) { return r.handle.RuleList(netlink.FAMILY_ALL) })
	if err != nil {
		return fmt.Errorf("listing rules: %w", err)
	}
	for i := range list {
		rule := &list[i]
		if rule.Protocol != link.Protocol {
			continue
		}
		item := &link.Rule{
			Netns: r.path, Priority: max(rule.Priority, 0), IPv6: rule.Family == netlink.FAMILY_V6, Source: rtnetlink.ToPrefix(rule.Src),
			Destination: rtnetlink.ToPrefix(rule.Dst), InDevice: rule.IifName, Mark: rule.Mark, Table: rule.Table,
		}
		if rule.Mask != nil {
			item.Mask = *rule.Mask
		}
		r.state[item.Key()] = item
	}
	return nil
}

// readAddresses adds the addresses that are items.
func (r *reader) readAddresses() error {
	if r.path != "" {
		return nil
	}
	list, err := rtnetlink.Dump(func() ([]netlink.Addr, error) { return r.handle.AddrList(nil, netlink.FAMILY_V4) })
	if err != nil {
		return fmt.Errorf("listing addresses: %w", err)
	}
	for _, have := range list {
		if name := r.names[have.LinkIndex]; have.Label == link.AddressLabel && name != "" {
			item := &link.Address{Device: name, Address: rtnetlink.ToPrefix(have.IPNet).Addr()}
			r.state[item.Key()] = item
		}
	}
	return nil
}

// readBridges adds the managed bridges, and those of their ports that are Weft's or managed.
func (r *reader) readBridges() error {
	wanted, bridges := r.bridgesAndPorts()
	requests := make([]*nl.NetlinkRequest, len(wanted))
	for i, name := range wanted {
		requests[i] = rtnetlink.GetLink(name)
	}
	answers, err := r.conn.Do(requests...)
	if err != nil {
		return err
	}
	pinned := map[int]*link.BridgePort{} // by index of the device
	for i := range answers {
		dev, err := answers[i].Device(wanted[i])
		if errors.Is(err, link.ErrNoDevice) {
			continue // it was deleted meanwhile
		}
		if err != nil {
			return err
		}
		attrs := dev.Attrs()
		if bridges[attrs.Index] == attrs.Name {
			item := r.bridge(dev, answers[i].Raw)
			r.state[item.Key()] = item
		}
		if bridge := bridges[attrs.MasterIndex]; bridge != "" {
			info := rtnetlink.LinkInfo(answers[i].Raw, nl.IFLA_INFO_SLAVE_DATA)
			item := &link.BridgePort{
				Netns: r.path, Bridge: bridge, Device: attrs.Name, Hairpin: rtnetlink.IsOne(info[rtnetlink.BrPortMode]), Isolated: rtnetlink.IsOne(info[rtnetlink.BrPortIsolated]),
			}
			r.state[item.Key()] = item
			if !rtnetlink.IsOne(info[rtnetlink.BrPortLearning]) && !rtnetlink.IsOne(info[rtnetlink.BrPortFlood]) {
				pinned[attrs.Index] = item
			}
		}
	}
	return r.readPinned(pinned)
}

// bridgesAndPorts returns the names of the managed bridges and of their ports that are Weft's or managed, and the bridges by index.
func (r *reader) bridgesAndPorts() (wanted []string, bridges map[int]string) {
	bridges = map[int]string{}
	for _, dev := range r.links {
		attrs := dev.Attrs()
		cared := strings.HasPrefix(attrs.Alias, link.AliasPrefix) || r.engine.care.Has(link.Key{Netns: r.path, Kind: link.KindBridge, Name: attrs.Name})
		if dev.Type() == rtnetlink.BridgeKind && cared {
			bridges[attrs.Index] = attrs.Name
			wanted = append(wanted, attrs.Name)
		}
	}
	for _, dev := range r.links {
		attrs := dev.Attrs()
		ours := strings.HasPrefix(attrs.Alias, link.AliasPrefix) || strings.HasPrefix(attrs.Alias, link.PodAliasPrefix)
		if bridges[attrs.MasterIndex] != "" && (ours || r.engine.care.Has(link.Key{Netns: r.path, Kind: link.KindBridgePort, Name: attrs.Name})) {
			wanted = append(wanted, attrs.Name)
		}
	}
	return wanted, bridges
}

func (r *reader) bridge(dev netlink.Link, raw []byte) *link.Bridge {
	info := rtnetlink.LinkInfo(raw, nl.IFLA_INFO_DATA)
	owner, _ := strings.CutPrefix(dev.Attrs().Alias, link.AliasPrefix)
	return &link.Bridge{
		Netns: r.path, Name: dev.Attrs().Name, Owner: owner, Promisc: dev.Attrs().RawFlags&unix.IFF_PROMISC != 0,
		NFCallIPTables: toggleOf(info[rtnetlink.BrNFCallIPTables]), NFCallIP6Tables: toggleOf(info[rtnetlink.BrNFCallIP6Tables]),
	}
}

// readPinned sets the MAC of ports that neither learn nor are flooded. A port without exactly one static entry keeps the zero MAC, and so
// differs from what was programmed.
func (r *reader) readPinned(ports map[int]*link.BridgePort) error {
	if len(ports) == 0 {
		return nil
	}
	entries, err := r.staticEntries()
	if err != nil {
		return err
	}
	for index, port := range ports {
		if of := entries[index]; len(of) == 1 {
			port.MAC = of[0]
		}
	}
	return nil
}
