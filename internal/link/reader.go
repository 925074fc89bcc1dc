package link

import (
	"errors"
	"fmt"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// reader reads what is managed in the session's namespace.
type reader struct {
	*session
	state map[Key]Item
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
	if r.links, err = listLinks(nil); err != nil {
		return err
	}
	r.names, r.cared = map[int]string{}, map[int]bool{}
	for _, link := range r.links {
		attrs := link.Attrs()
		r.names[attrs.Index] = attrs.Name
		device, veth := Key{r.path, KindDevice, attrs.Name}, Key{r.path, KindVeth, attrs.Name}
		owner, marked := strings.CutPrefix(attrs.Alias, AliasPrefix)
		if marked || r.engine.care.has(device) {
			item, err := r.device(link, owner)
			if errors.Is(err, unix.ENODEV) {
				continue // it was deleted meanwhile
			}
			if err != nil {
				return err
			}
			r.cared[attrs.Index], r.state[device] = true, item
		}
		if link.Type() == "veth" && r.engine.care.has(veth) {
			r.state[veth] = r.veth(link)
		}
	}
	if err := r.readBridges(); err != nil {
		return err
	}
	routes, err := readRoutes(r.handle, r.names)
	if err != nil {
		return err
	}
	for _, route := range routes {
		route.Netns = r.path
		r.state[route.Key()] = route
	}
	return errors.Join(r.readAddresses(), r.readNeighbours(), r.readRules())
}

func (r *reader) device(link netlink.Link, owner string) (*Device, error) {
	item, err := readDevice(r.handle, link)
	if err != nil {
		return nil, err
	}
	item.Netns, item.Owner = r.path, owner
	return item, nil
}

func (r *reader) readNeighbours() error {
	list, err := dump(func() ([]netlink.Neigh, error) { return r.handle.NeighList(0, netlink.FAMILY_ALL) })
	if err != nil {
		return fmt.Errorf("listing neighbours: %w", err)
	}
	for i := range list {
		entry := &list[i]
		known := entry.Family == netlink.FAMILY_V4 || entry.Family == netlink.FAMILY_V6
		if !known || !r.cared[entry.LinkIndex] || entry.State&netlink.NUD_PERMANENT == 0 {
			continue
		}
		item := &Neighbour{Netns: r.path, Device: r.names[entry.LinkIndex], Address: toAddr(entry.IP), MAC: entry.HardwareAddr}
		r.state[item.Key()] = item
	}
	return nil
}

func (r *reader) readRules() error {
	list, err := dump(func() ([]netlink.Rule, error) { return r.handle.RuleList(netlink.FAMILY_ALL) })
	if err != nil {
		return fmt.Errorf("listing rules: %w", err)
	}
	for i := range list {
		rule := &list[i]
		if rule.Protocol != Protocol {
			continue
		}
		item := &Rule{
			Netns: r.path, Priority: max(rule.Priority, 0), IPv6: rule.Family == netlink.FAMILY_V6, Source: toPrefix(rule.Src),
			Destination: toPrefix(rule.Dst), InDevice: rule.IifName, Mark: rule.Mark, Table: rule.Table,
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
	list, err := dump(func() ([]netlink.Addr, error) { return r.handle.AddrList(nil, netlink.FAMILY_V4) })
	if err != nil {
		return fmt.Errorf("listing addresses: %w", err)
	}
	for _, have := range list {
		if name := r.names[have.LinkIndex]; have.Label == AddressLabel && name != "" {
			item := &Address{Device: name, Address: toPrefix(have.IPNet).Addr()}
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
		requests[i] = getLink(name)
	}
	answers, err := r.conn.do(requests...)
	if err != nil {
		return err
	}
	pinned := map[int]*BridgePort{} // by index of the device
	for i := range answers {
		link, err := answers[i].device(wanted[i])
		if errors.Is(err, ErrNoDevice) {
			continue // it was deleted meanwhile
		}
		if err != nil {
			return err
		}
		attrs := link.Attrs()
		if bridges[attrs.Index] == attrs.Name {
			item := r.bridge(link, answers[i].raw)
			r.state[item.Key()] = item
		}
		if bridge := bridges[attrs.MasterIndex]; bridge != "" {
			info := linkInfo(answers[i].raw, nl.IFLA_INFO_SLAVE_DATA)
			item := &BridgePort{
				Netns: r.path, Bridge: bridge, Device: attrs.Name, Hairpin: isOne(info[brPortMode]), Isolated: isOne(info[brPortIsolated]),
			}
			r.state[item.Key()] = item
			if !isOne(info[brPortLearning]) && !isOne(info[brPortFlood]) {
				pinned[attrs.Index] = item
			}
		}
	}
	return r.readPinned(pinned)
}

// bridgesAndPorts returns the names of the managed bridges and of their ports that are Weft's or managed, and the bridges by index.
func (r *reader) bridgesAndPorts() (wanted []string, bridges map[int]string) {
	bridges = map[int]string{}
	for _, link := range r.links {
		attrs := link.Attrs()
		cared := strings.HasPrefix(attrs.Alias, AliasPrefix) || r.engine.care.has(Key{r.path, KindBridge, attrs.Name})
		if link.Type() == bridgeKind && cared {
			bridges[attrs.Index] = attrs.Name
			wanted = append(wanted, attrs.Name)
		}
	}
	for _, link := range r.links {
		attrs := link.Attrs()
		ours := strings.HasPrefix(attrs.Alias, AliasPrefix) || strings.HasPrefix(attrs.Alias, PodAliasPrefix)
		if bridges[attrs.MasterIndex] != "" && (ours || r.engine.care.has(Key{r.path, KindBridgePort, attrs.Name})) {
			wanted = append(wanted, attrs.Name)
		}
	}
	return wanted, bridges
}

func (r *reader) bridge(link netlink.Link, raw []byte) *Bridge {
	info := linkInfo(raw, nl.IFLA_INFO_DATA)
	owner, _ := strings.CutPrefix(link.Attrs().Alias, AliasPrefix)
	return &Bridge{
		Netns: r.path, Name: link.Attrs().Name, Owner: owner, Promisc: link.Attrs().RawFlags&unix.IFF_PROMISC != 0,
		NFCallIPTables: toggleOf(info[brNFCallIPTables]), NFCallIP6Tables: toggleOf(info[brNFCallIP6Tables]),
	}
}

// readPinned sets the MAC of ports that neither learn nor are flooded. A port without exactly one static entry keeps the zero MAC, and so
// differs from what was programmed.
func (r *reader) readPinned(ports map[int]*BridgePort) error {
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
