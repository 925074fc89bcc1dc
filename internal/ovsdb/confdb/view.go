package confdb

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// LocalPort is OFPP_LOCAL, the number of every bridge's local port (OpenFlow 1.3, A.2.1, as OVS numbers ports in 16
// bits).
const LocalPort = 65534

// TypeSystem is the long form of the type "", a link of the host: ovs-vswitchd.conf.db(5).
const TypeSystem = "system"

// OwnerID is the external_ids key that marks a row as Weft's. Its value names the object that the row is for; it may be empty.
const OwnerID = "weft.dev/owner"

// ProgramID is the external_ids key that names the program that owns the row, if that is not Weft's agent.
const ProgramID = "weft.dev/program"

// Tables is a copy of the rows of the monitored tables, by UUID.
type Tables struct {
	Root       map[string]*Root
	Bridges    map[string]*Bridge
	Ports      map[string]*Port
	Interfaces map[string]*Interface
}

// View is the database arranged by name. It has all rows, and marks those that are Weft's.
type View struct {
	// Root is nil if the database has no Open_vSwitch row yet.
	Root    *Root
	Bridges map[string]*BridgeState
	Ports   map[string]*PortState
	// Interfaces maps every interface's name to the name of its port.
	Interfaces map[string]string
	// dangling says that a row refers to a missing row: the copy was taken in the middle of an update.
	dangling bool
}

// BridgeState is a bridge with its local port's interface.
type BridgeState struct {
	Row *Bridge
	// Own says that the row is the program's.
	Own bool

	local *Interface
}

// PortState is a port with its bridge and its interface.
type PortState struct {
	Row    *Port
	Bridge *Bridge
	// Interface is the one with the port's name, else any interface of the port, else nil.
	Interface *Interface
	// Own says that the row is the program's. A bridge's local port belongs to the bridge.
	Own bool
}

// Claim says which rows of the switch are this program's.
type Claim struct {
	// Bridges are the names of its own bridges.
	Bridges []string
	// Program is its name in ProgramID. Empty: its rows have no ProgramID.
	Program string
}

// Marked reports whether a row with these external_ids is the program's.
func (c Claim) Marked(ids map[string]string) bool {
	_, owned := ids[OwnerID]
	return owned && ids[ProgramID] == c.Program
}

// NewView arranges the rows.
func NewView(t Tables, own Claim) *View {
	v := &View{
		Bridges:    make(map[string]*BridgeState, len(t.Bridges)),
		Ports:      make(map[string]*PortState, len(t.Ports)),
		Interfaces: make(map[string]string, len(t.Interfaces)),
	}
	for _, uuid := range slices.Sorted(maps.Keys(t.Root)) {
		v.Root = t.Root[uuid] // the table has at most one row
		break
	}
	if v.Root == nil {
		return v
	}
	for _, uuid := range v.Root.Bridges {
		row, ok := t.Bridges[uuid]
		if !ok {
			v.dangling = true
			continue
		}
		b := &BridgeState{Row: row, Own: own.Marked(row.ExternalIDs) || slices.Contains(own.Bridges, row.Name)}
		v.Bridges[row.Name] = b
		v.addPorts(t, b, own)
	}
	return v
}

func (v *View) addPorts(t Tables, b *BridgeState, own Claim) {
	for _, uuid := range b.Row.Ports {
		row, ok := t.Ports[uuid]
		if !ok {
			v.dangling = true
			continue
		}
		p := &PortState{Row: row, Bridge: b.Row}
		local := row.Name == b.Row.Name
		p.Own = !local && (b.Own || own.Marked(row.ExternalIDs))
		for _, ifUUID := range row.Interfaces {
			iface, ok := t.Interfaces[ifUUID]
			if !ok {
				v.dangling = true
				continue
			}
			v.Interfaces[iface.Name] = row.Name
			if p.Interface == nil || iface.Name == row.Name {
				p.Interface = iface
			}
		}
		if local {
			b.local = p.Interface
		}
		v.Ports[row.Name] = p
	}
}

// OFPort returns the number that the switch gave to a port or a bridge's local port; ok is false while it has none.
func (v *View) OFPort(name string) (number int, ok bool) {
	p, found := v.Ports[name]
	if !found || p.Interface == nil || p.Interface.OFPort == nil {
		return 0, false
	}
	return *p.Interface.OFPort, true
}

// Failure returns why the bridge is not in effect, or "".
func (b *BridgeState) Failure() string {
	switch {
	case b.local == nil:
		return "has no local port"
	case Optional(b.local.Error) != "":
		return Optional(b.local.Error)
	case b.local.OFPort == nil || *b.local.OFPort != LocalPort:
		return fmt.Sprintf("the switch did not make the bridge with datapath_type=%q; ovs-vswitchd's log says why",
			b.Row.DatapathType)
	}
	return ""
}

// Failure returns why the port is not in effect as it is written, or "".
func (p *PortState) Failure() string {
	if len(p.Row.Interfaces) != 1 || p.Interface == nil || p.Interface.Name != p.Row.Name {
		return fmt.Sprintf("has %d interfaces, want one of its own name", len(p.Row.Interfaces))
	}
	if !maps.Equal(VisibleIDs(p.Row.ExternalIDs), VisibleIDs(p.Interface.ExternalIDs)) {
		return "external_ids of the port and of its interface differ"
	}
	return p.SwitchFailure()
}

// SwitchFailure returns the switch's error for the port.
func (p *PortState) SwitchFailure() string {
	i := p.Interface
	switch {
	case Optional(i.Error) != "":
		return *i.Error
	case i.OFPort == nil:
		return "the switch has not taken it up"
	case *i.OFPort <= 0:
		return "the switch gave it no port number; ovs-vswitchd's log says why"
	case i.OFPortRequest != nil && *i.OFPort != *i.OFPortRequest:
		return fmt.Sprintf("the switch gave it port number %d instead of %d", *i.OFPort, *i.OFPortRequest)
	case (i.Type == "" || i.Type == TypeSystem) && i.IfIndex != nil && *i.IfIndex == 0:
		// The userspace datapath keeps a port's number when its link is removed, and reports the removal nowhere else. If a link of that name is
		// made, the switch adds it by itself.
		return "its link has gone (No such device)"
	}
	return ""
}

// VisibleIDs returns a copy of ids without what OVN keeps in it.
func VisibleIDs(ids map[string]string) map[string]string {
	visible := make(map[string]string, len(ids))
	for k, v := range ids {
		if !KeptByOVN(k) {
			visible[k] = v
		}
	}
	return visible
}

// Optional returns the value of a column of zero or one value; the zero value of T if it has none.
func Optional[T any](p *T) T {
	if p == nil {
		var zero T
		return zero
	}
	return *p
}

// KeptByOVN reports whether ovn-controller writes this external_ids key to bridges and ports of others (ovn-controller(8)). Weft ignores
// these keys and does not remove them.
func KeptByOVN(key string) bool {
	return strings.HasPrefix(key, "ovn-installed") || strings.HasPrefix(key, "ct-zone-") ||
		strings.HasPrefix(key, "ovn-nb-cfg") || key == "ovn-startup-ts"
}
