package ovsdb

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"weft.dev/weft/internal/ovsdb/confdb"
)

// OwnerID is the external_ids key that marks a row as Weft's. Its value names the object that the row is for. Commit adds it, with an
// empty value, to rows without it.
const OwnerID = confdb.OwnerID

// ProgramID is the external_ids key that names the program that owns the row, if that is not Weft's agent ([Config.Program]).
const ProgramID = confdb.ProgramID

// Kind is the kind of a row: its table.
type Kind uint8

// The kinds of rows.
const (
	// KindBridge is a row of the table Bridge, with its local port.
	KindBridge Kind = iota + 1
	// KindPort is a row of the table Port together with its one row of the table Interface.
	KindPort
)

// String returns the name of the kind for users.
func (k Kind) String() string {
	switch k {
	case KindBridge:
		return "bridge"
	case KindPort:
		return "port"
	default:
		return fmt.Sprintf("kind(%d)", uint8(k))
	}
}

// Key identifies a row. In Open vSwitch, names of bridges are unique within a database, and so are names of ports.
type Key struct {
	Kind Kind
	Name string
}

// String returns the key as "port eth0".
func (k Key) String() string { return k.Kind.String() + " " + k.Name }

// BridgeKey returns the key of the bridge of that name.
func BridgeKey(name string) Key { return Key{Kind: KindBridge, Name: name} }

// PortKey returns the key of the port of that name.
func PortKey(name string) Key { return Key{Kind: KindPort, Name: name} }

// Row is the value of the engine: a *[Bridge] or a *[Port].
type Row interface {
	// Key returns the key of the row.
	Key() Key
	// Equal reports whether both rows configure the switch in the same way. It ignores what only the switch fills in, except a failure. So a
	// row that is written but not in effect differs from the desired row.
	Equal(other Row) bool
	// Validate returns an error that names the field if the row cannot or must not be written.
	Validate() error
	// String returns the row in one line, in the syntax of ovs-vsctl.
	String() string
}

// Bridge is a desired or existing bridge. Its local port is made with it.
type Bridge struct {
	// Name is the name of the bridge and of its local port, at most 15 bytes.
	Name string
	// DatapathType is DatapathSystem or DatapathNetdev. Empty means the switch's default, which is system.
	DatapathType string
	// FailMode is "secure", "standalone", or empty for the switch's default, which is standalone.
	FailMode string
	// Protocols are the OpenFlow versions that the bridge speaks ("OpenFlow13", "OpenFlow15"). Empty means the
	// switch's default. Order does not matter.
	Protocols []string
	// OtherConfig is the column other_config; "hwaddr" in it sets the address of the local port.
	OtherConfig map[string]string
	// ExternalIDs is the column external_ids, without what OVN keeps in it.
	ExternalIDs map[string]string

	// Controllers is set by Read: the number of OpenFlow controllers that others have set on the bridge. Desired state has none: the switch
	// would add hidden flows for them (in-band control), and each may change any flow.
	Controllers int
	// Failure is set by Read if the bridge is in the database but not in effect: the reason. It is never written.
	Failure string
}

var _ Row = (*Bridge)(nil)

// Key implements Row.
func (b *Bridge) Key() Key { return BridgeKey(b.Name) }

// Equal implements Row.
func (b *Bridge) Equal(other Row) bool {
	o, ok := other.(*Bridge)
	if !ok || o == nil {
		return false
	}
	return b.Name == o.Name && b.DatapathType == o.DatapathType && b.FailMode == o.FailMode &&
		b.Failure == o.Failure && b.Controllers == o.Controllers &&
		slices.Equal(sortedSet(b.Protocols), sortedSet(o.Protocols)) &&
		maps.Equal(b.OtherConfig, o.OtherConfig) &&
		maps.Equal(withOwner(b.ExternalIDs), withOwner(o.ExternalIDs))
}

// String implements Row.
func (b *Bridge) String() string {
	var s strings.Builder
	s.WriteString("bridge " + b.Name)
	field(&s, "datapath_type", b.DatapathType)
	field(&s, "fail_mode", b.FailMode)
	field(&s, "protocols", strings.Join(sortedSet(b.Protocols), ","))
	fieldMap(&s, "other_config", b.OtherConfig)
	fieldMap(&s, "external_ids", b.ExternalIDs)
	if b.Controllers > 0 {
		field(&s, "controllers", strconv.Itoa(b.Controllers))
	}
	field(&s, "failure", b.Failure)
	return s.String()
}

// clone returns a copy that shares nothing with b.
func (b *Bridge) clone() *Bridge {
	c := *b
	c.Protocols = slices.Clone(b.Protocols)
	c.OtherConfig = maps.Clone(b.OtherConfig)
	c.ExternalIDs = maps.Clone(b.ExternalIDs)
	return &c
}

// Types of ports that Weft makes. A link that exists in the switch's network namespace has TypeLink.
const (
	TypeLink     = ""
	TypeInternal = "internal"
	TypeVXLAN    = "vxlan"
	TypeGeneve   = "geneve"
	TypePatch    = "patch"
)

// Port is a desired or existing port: a Port row and its one Interface row, both of the same name.
type Port struct {
	// Bridge is the name of the bridge that the port is on.
	Bridge string
	// Name is the name of the port, of its interface, and for TypeLink and TypeInternal of the link; at most 15 bytes.
	Name string
	// Type is one of the Type constants. The zero value is an existing link.
	Type string
	// OFPort is the OpenFlow port number to request, 1 to 65279. 0: the switch chooses. A port that does not get the requested number has
	// failed.
	OFPort uint16
	// Options is the interface's column options, such as remote_ip or dst_port of a tunnel.
	Options map[string]string
	// MAC is the address of an internal port's link, in the form 0a:58:0a:80:00:01. Empty: the switch chooses.
	MAC string
	// MTURequest is the MTU in bytes of an internal port's link. 0: unchanged.
	MTURequest int
	// LLDP enables LLDP on this port. The zero value disables it: OVS has leaked memory and crashed on crafted LLDP frames (CVE-2020-27827).
	LLDP bool
	// IngressRate limits the traffic from the port, in kbit/s; excess packets are dropped. 0 is no limit.
	IngressRate int
	// IngressBurst is the burst that IngressRate allows, in kbit. 0 is the switch's default (8000).
	IngressBurst int
	// ExternalIDs is the column external_ids, without what OVN keeps in it. It is written to the Port row (where Weft
	// looks for the owner) and to the Interface row (where OVN looks for iface-id).
	ExternalIDs map[string]string

	// Failure is set by Read if the port is in the database but not in effect: the switch's error. It is never written.
	Failure string
}

var _ Row = (*Port)(nil)

// Key implements Row.
func (p *Port) Key() Key { return PortKey(p.Name) }

// Equal implements Row.
func (p *Port) Equal(other Row) bool {
	o, ok := other.(*Port)
	if !ok || o == nil {
		return false
	}
	return p.Bridge == o.Bridge && p.Name == o.Name && p.Type == o.Type && p.OFPort == o.OFPort &&
		p.MAC == o.MAC && p.MTURequest == o.MTURequest && p.LLDP == o.LLDP &&
		p.IngressRate == o.IngressRate && p.IngressBurst == o.IngressBurst && p.Failure == o.Failure &&
		maps.Equal(p.Options, o.Options) &&
		maps.Equal(withOwner(p.ExternalIDs), withOwner(o.ExternalIDs))
}

// String implements Row.
func (p *Port) String() string {
	var s strings.Builder
	s.WriteString("port " + p.Name)
	field(&s, "bridge", p.Bridge)
	field(&s, "type", p.Type)
	fieldInt(&s, "ofport_request", int(p.OFPort))
	fieldMap(&s, "options", p.Options)
	field(&s, "mac", p.MAC)
	fieldInt(&s, "mtu_request", p.MTURequest)
	if p.LLDP {
		field(&s, "lldp", "enable")
	}
	fieldInt(&s, "ingress_policing_rate", p.IngressRate)
	fieldInt(&s, "ingress_policing_burst", p.IngressBurst)
	fieldMap(&s, "external_ids", p.ExternalIDs)
	field(&s, "failure", p.Failure)
	return s.String()
}

// clone returns a copy that shares nothing with p.
func (p *Port) clone() *Port {
	c := *p
	c.Options = maps.Clone(p.Options)
	c.ExternalIDs = maps.Clone(p.ExternalIDs)
	return &c
}

// cloneRow returns a copy that shares nothing with r.
func cloneRow(r Row) Row {
	switch v := r.(type) {
	case *Bridge:
		return v.clone()
	case *Port:
		return v.clone()
	default:
		return r
	}
}

// withOwner returns a copy of ids with the owner's mark.
func withOwner(ids map[string]string) map[string]string {
	if _, ok := ids[OwnerID]; ok {
		return ids
	}
	marked := maps.Clone(ids)
	if marked == nil {
		marked = map[string]string{}
	}
	marked[OwnerID] = ""
	return marked
}

func sortedSet(s []string) []string { return slices.Compact(slices.Sorted(slices.Values(s))) }

func field(s *strings.Builder, name, value string) {
	if value != "" {
		fmt.Fprintf(s, " %s=%s", name, value)
	}
}

func fieldInt(s *strings.Builder, name string, value int) {
	if value != 0 {
		fmt.Fprintf(s, " %s=%d", name, value)
	}
}

func fieldMap(s *strings.Builder, name string, m map[string]string) {
	for _, k := range slices.SortedFunc(maps.Keys(m), cmp.Compare) {
		fmt.Fprintf(s, " %s:%s=%q", name, k, m[k])
	}
}
