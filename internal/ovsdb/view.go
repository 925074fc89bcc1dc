package ovsdb

import (
	"fmt"
	"maps"
	"slices"
)

// localPort is OFPP_LOCAL, the number of every bridge's local port (OpenFlow 1.3, A.2.1, as OVS numbers ports in 16
// bits).
const localPort = 65534

// typeSystem is the long form of TypeLink, ovs-vswitchd.conf.db(5).
const typeSystem = "system"

// tables is a copy of the rows of the monitored tables, by UUID.
type tables struct {
	root       map[string]*rootRow
	bridges    map[string]*bridgeRow
	ports      map[string]*portRow
	interfaces map[string]*interfaceRow
}

// view is the database arranged by name. It has all rows, and marks those that are Weft's.
type view struct {
	root    *rootRow
	bridges map[string]*bridgeState
	ports   map[string]*portState
	// interfaces maps every interface's name to the name of its port.
	interfaces map[string]string
	// dangling says that a row refers to a missing row: the copy was taken in the middle of an update.
	dangling bool
}

type bridgeState struct {
	row   *bridgeRow
	local *interfaceRow
	own   bool
}

type portState struct {
	row    *portRow
	bridge *bridgeRow
	// iface is the interface with the port's name, else any interface of the port, else nil.
	iface *interfaceRow
	local bool
	own   bool
}

// claim says which rows of the switch are this program's.
type claim struct {
	// bridges are the names of its own bridges.
	bridges []string
	// program is its name in ProgramID. Empty: its rows have no ProgramID.
	program string
}

// marked reports whether a row with these external_ids is the program's.
func (c claim) marked(ids map[string]string) bool {
	_, owned := ids[OwnerID]
	return owned && ids[ProgramID] == c.program
}

// newView arranges the rows.
func newView(t tables, own claim) *view {
	v := &view{
		bridges:    make(map[string]*bridgeState, len(t.bridges)),
		ports:      make(map[string]*portState, len(t.ports)),
		interfaces: make(map[string]string, len(t.interfaces)),
	}
	for _, uuid := range slices.Sorted(maps.Keys(t.root)) {
		v.root = t.root[uuid] // the table has at most one row
		break
	}
	if v.root == nil {
		return v
	}
	for _, uuid := range v.root.Bridges {
		row, ok := t.bridges[uuid]
		if !ok {
			v.dangling = true
			continue
		}
		b := &bridgeState{row: row, own: own.marked(row.ExternalIDs) || slices.Contains(own.bridges, row.Name)}
		v.bridges[row.Name] = b
		v.addPorts(t, b, own)
	}
	return v
}

func (v *view) addPorts(t tables, b *bridgeState, own claim) {
	for _, uuid := range b.row.Ports {
		row, ok := t.ports[uuid]
		if !ok {
			v.dangling = true
			continue
		}
		p := &portState{row: row, bridge: b.row, local: row.Name == b.row.Name}
		p.own = !p.local && (b.own || own.marked(row.ExternalIDs))
		for _, ifUUID := range row.Interfaces {
			iface, ok := t.interfaces[ifUUID]
			if !ok {
				v.dangling = true
				continue
			}
			v.interfaces[iface.Name] = row.Name
			if p.iface == nil || iface.Name == row.Name {
				p.iface = iface
			}
		}
		if p.local {
			b.local = p.iface
		}
		v.ports[row.Name] = p
	}
}

// own returns the rows that belong to Weft, as values.
func (v *view) own() map[Key]Row {
	rows := make(map[Key]Row, len(v.ports))
	for name, b := range v.bridges {
		if b.own {
			rows[BridgeKey(name)] = b.value()
		}
	}
	for name, p := range v.ports {
		if p.own {
			rows[PortKey(name)] = p.value()
		}
	}
	return rows
}

// verdict returns the switch's error for the row after it was written, or "" if the row is in effect.
func (v *view) verdict(key Key) string {
	b, p := v.bridges[key.Name], v.ports[key.Name]
	switch {
	case key.Kind == KindBridge && b != nil:
		return b.failure()
	case key.Kind == KindPort && p != nil && p.iface != nil:
		if on := v.bridges[p.bridge.Name]; on != nil && p.iface.OFPort == nil && on.failure() != "" {
			return fmt.Sprintf("bridge %s: %s", p.bridge.Name, on.failure())
		}
		return p.switchFailure()
	default:
		return "someone else removed it at once"
	}
}

// ofport returns the number that the switch gave to a port or a bridge's local port; ok is false while it has none.
func (v *view) ofport(name string) (number int, ok bool) {
	p, found := v.ports[name]
	if !found || p.iface == nil || p.iface.OFPort == nil {
		return 0, false
	}
	return *p.iface.OFPort, true
}

// value converts the bridge. The maps are copies: the rows belong to the cache.
func (b *bridgeState) value() *Bridge {
	return &Bridge{
		Name:         b.row.Name,
		DatapathType: b.row.DatapathType,
		FailMode:     deref(b.row.FailMode),
		Protocols:    sortedSet(b.row.Protocols),
		OtherConfig:  maps.Clone(b.row.OtherConfig),
		ExternalIDs:  visibleIDs(b.row.ExternalIDs),
		Controllers:  len(b.row.Controller),
		Failure:      b.failure(),
	}
}

func (b *bridgeState) failure() string {
	switch {
	case b.local == nil:
		return "has no local port"
	case deref(b.local.Error) != "":
		return deref(b.local.Error)
	case b.local.OFPort == nil || *b.local.OFPort != localPort:
		return fmt.Sprintf("the switch did not make the bridge with datapath_type=%q; ovs-vswitchd's log says why",
			b.row.DatapathType)
	}
	return ""
}

// value converts the port.
func (p *portState) value() *Port {
	v := &Port{Bridge: p.bridge.Name, Name: p.row.Name, ExternalIDs: visibleIDs(p.row.ExternalIDs), Failure: p.failure()}
	if p.iface == nil {
		return v
	}
	i := p.iface
	v.Type = i.Type
	if v.Type == typeSystem {
		v.Type = TypeLink
	}
	if request := deref(i.OFPortRequest); request > 0 && request <= maxOFPort {
		v.OFPort = uint16(request)
	}
	v.Options = maps.Clone(i.Options)
	v.MAC = deref(i.MAC)
	v.MTURequest = deref(i.MTURequest)
	v.LLDP = i.LLDP["enable"] == "true"
	v.IngressRate = i.IngressPolicingRate
	v.IngressBurst = i.IngressPolicingBurst
	return v
}

func (p *portState) failure() string {
	if len(p.row.Interfaces) != 1 || p.iface == nil || p.iface.Name != p.row.Name {
		return fmt.Sprintf("has %d interfaces, want one of its own name", len(p.row.Interfaces))
	}
	if !maps.Equal(visibleIDs(p.row.ExternalIDs), visibleIDs(p.iface.ExternalIDs)) {
		return "external_ids of the port and of its interface differ"
	}
	return p.switchFailure()
}

// switchFailure returns the switch's error for the port.
func (p *portState) switchFailure() string {
	i := p.iface
	switch {
	case deref(i.Error) != "":
		return *i.Error
	case i.OFPort == nil:
		return "the switch has not taken it up"
	case *i.OFPort <= 0:
		return "the switch gave it no port number; ovs-vswitchd's log says why"
	case i.OFPortRequest != nil && *i.OFPort != *i.OFPortRequest:
		return fmt.Sprintf("the switch gave it port number %d instead of %d", *i.OFPort, *i.OFPortRequest)
	case (i.Type == TypeLink || i.Type == typeSystem) && i.IfIndex != nil && *i.IfIndex == 0:
		// The userspace datapath keeps a port's number when its link is removed, and reports the removal nowhere else. If a link of that name is
		// made, the switch adds it by itself.
		return "its link has gone (No such device)"
	}
	return ""
}

// visibleIDs returns a copy of ids without what OVN keeps in it.
func visibleIDs(ids map[string]string) map[string]string {
	visible := make(map[string]string, len(ids))
	for k, v := range ids {
		if !keptByOVN(k) {
			visible[k] = v
		}
	}
	return visible
}

func deref[T any](p *T) T {
	if p == nil {
		var zero T
		return zero
	}
	return *p
}
