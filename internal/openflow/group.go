package openflow

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"

	"weft.dev/weft/internal/openflow/action"
	"weft.dev/weft/internal/openflow/oxm"
	"weft.dev/weft/internal/openflow/wire"
)

// GroupType is how a group uses its buckets.
type GroupType uint8

// The types: all buckets; one by a hash; the only one; the first that is live.
const (
	GroupAll GroupType = iota
	GroupSelect
	GroupIndirect
	GroupFastFailover
)

// String returns the type's name in ovs-ofctl.
func (t GroupType) String() string {
	names := [...]string{"all", "select", "indirect", "ff"}
	if int(t) < len(names) {
		return names[t]
	}
	return "unknown"
}

// Group is a list of buckets that flows hand packets to.
type Group struct {
	// ID is the group's number, 1 to 0xffffff00.
	ID      uint32
	Type    GroupType
	Buckets []Bucket
	// Selection chooses how a select group picks; nil: the switch's own hash (dp_hash).
	Selection *Selection
	// opaque are properties that this package does not know.
	opaque string
}

// Bucket is one bucket of a group.
type Bucket struct {
	// ID numbers the bucket within its group. If all are 0, they are numbered by position, from 0.
	ID uint32
	// Weight is the bucket's share of the packets in a select group; 0 there means no packets. Other groups have no weights.
	Weight uint16
	// WatchPort makes the bucket live only while the port is live; 0: none watched.
	WatchPort uint32
	// WatchGroup makes the bucket live only while the group is live; 0: none watched.
	WatchGroup uint32
	Actions    action.Actions
}

// Selection is how a select group picks its bucket (ovs-ofctl(8), selection_method).
type Selection struct {
	// Method is "hash" (over Fields) or "dp_hash".
	Method string
	Param  uint64
	Fields []oxm.Field
}

// Key returns the group's number.
func (g *Group) Key() Key { return Key{Group: g.ID} }

// Equal reports whether the other is the same group with the same effect.
func (g *Group) Equal(other Entry) bool {
	o, ok := other.(*Group)
	if !ok || g == nil || o == nil {
		return false
	}
	return g.ID == o.ID && g.Type == o.Type && bytes.Equal(g.buckets(), o.buckets()) &&
		bytes.Equal(g.appendProperties(nil), o.appendProperties(nil))
}

// String prints the group as `ovs-ofctl -O OpenFlow15 dump-groups` does, without the leading space.
func (g *Group) String() string {
	b := strconv.AppendUint([]byte("group_id="), uint64(g.ID), 10)
	b = append(append(b, ",type="...), g.Type.String()...)
	if s := g.Selection; s != nil {
		b = append(append(b, ",selection_method="...), s.Method...)
		if s.Param != 0 {
			b = strconv.AppendUint(append(b, ",selection_method_param="...), s.Param, 10)
		}
		names := make([]string, 0, len(s.Fields))
		for _, f := range s.Fields {
			names = append(names, f.String())
		}
		switch len(names) {
		case 0:
		case 1:
			b = append(append(b, ",fields="...), names[0]...)
		default:
			b = append(append(append(b, ",fields("...), strings.Join(names, ",")...), ')')
		}
	}
	for i, bucket := range g.Buckets {
		b = bucket.appendText(append(b, ','), g.bucketID(i), g.Type)
	}
	return string(b)
}

func (k *Bucket) appendText(b []byte, id uint32, kind GroupType) []byte {
	b = append(strconv.AppendUint(append(b, "bucket=bucket_id:"...), uint64(id), 10), ',')
	if (kind == GroupSelect && k.Weight != 1) || (kind != GroupSelect && k.Weight != 0) {
		b = append(strconv.AppendUint(append(b, "weight:"...), uint64(k.Weight), 10), ',')
	}
	if k.WatchPort != 0 {
		b = append(wire.AppendPort(append(b, "watch_port:"...), k.WatchPort), ',')
	}
	if k.WatchGroup != 0 {
		b = append(strconv.AppendUint(append(b, "watch_group:"...), uint64(k.WatchGroup), 10), ',')
	}
	return k.Actions.AppendText(append(b, "actions="...))
}

// bucketID returns the number of bucket i in messages.
func (g *Group) bucketID(i int) uint32 {
	for _, b := range g.Buckets {
		if b.ID != 0 {
			return g.Buckets[i].ID
		}
	}
	return uint32(i) //nolint:gosec // a group's buckets fit in 64 KiB
}

const (
	bucketWeight      = 0
	bucketWatchPort   = 1
	bucketWatchGroup  = 2
	maxGroupID        = 0xffffff00
	groupExperimenter = 0xffff
	vendorNetronome   = 0x0000154d
	selectionMethod   = 1
	// selectionNameLen is the space for a selection method's name, its terminating zero included.
	selectionNameLen = 16
)

func (g *Group) buckets() []byte {
	var b []byte
	for i := range g.Buckets {
		b = g.Buckets[i].appendWire(b, g.bucketID(i), g.Type)
	}
	return b
}

func (k *Bucket) appendWire(b []byte, id uint32, kind GroupType) []byte {
	start := len(b)
	b = binary.BigEndian.AppendUint32(wire.Zeros(b, 4), id)
	b = k.Actions.AppendWire(b)
	actions := len(b) - start - 8
	if kind == GroupSelect || k.Weight != 0 {
		b = append(binary.BigEndian.AppendUint16(append(b, 0, bucketWeight, 0, 8), k.Weight), 0, 0)
	}
	if k.WatchPort != 0 {
		b = binary.BigEndian.AppendUint32(append(b, 0, bucketWatchPort, 0, 8), k.WatchPort)
	}
	if k.WatchGroup != 0 {
		b = binary.BigEndian.AppendUint32(append(b, 0, bucketWatchGroup, 0, 8), k.WatchGroup)
	}
	binary.BigEndian.PutUint16(b[start:], uint16(len(b)-start)) //nolint:gosec // Validate bounds a group's size
	binary.BigEndian.PutUint16(b[start+2:], uint16(actions))    //nolint:gosec // the same
	return b
}

func (g *Group) appendProperties(b []byte) []byte {
	if s := g.Selection; s != nil {
		v := binary.BigEndian.AppendUint32(nil, vendorNetronome)
		v = wire.Zeros(binary.BigEndian.AppendUint32(v, selectionMethod), 4)
		var name [selectionNameLen]byte
		copy(name[:selectionNameLen-1], s.Method)
		v = binary.BigEndian.AppendUint64(append(v, name[:]...), s.Param)
		for _, f := range s.Fields {
			v = oxm.Wide(f, wire.Ones(f.Bits()), wire.Ones(f.Bits())).AppendOXM(v)
		}
		b = wire.AppendProperty(b, groupExperimenter, v)
	}
	return append(b, g.opaque...)
}

// Validate reports what the switch would refuse, before the group is put into a bundle. Open vSwitch has had bugs in undoing a bundle
// that fails half-way (CVE-2018-17205), so no bundle that is known to fail should be sent.
func (g *Group) Validate() error {
	seen := map[uint32]bool{}
	for i, b := range g.Buckets {
		id := g.bucketID(i)
		switch {
		case id > maxGroupID:
			return fmt.Errorf("group %d: bucket number %d is reserved", g.ID, id)
		case seen[id]:
			return fmt.Errorf("group %d: bucket number %d is there twice", g.ID, id)
		case g.Type != GroupSelect && b.Weight != 0:
			return fmt.Errorf("group %d: a bucket of type %s has no weight", g.ID, g.Type)
		}
		seen[id] = true
		if err := b.Actions.ValidateNested(); err != nil {
			return fmt.Errorf("group %d: %w", g.ID, err)
		}
	}
	switch {
	case g.ID == 0 || g.ID > maxGroupID:
		return fmt.Errorf("group %d: numbers go from 1 to %d", g.ID, uint32(maxGroupID))
	case g.Type > GroupFastFailover:
		return fmt.Errorf("group %d: unknown type %d", g.ID, g.Type)
	case g.Type == GroupIndirect && len(g.Buckets) != 1:
		return fmt.Errorf("group %d: an indirect group has one bucket, not %d", g.ID, len(g.Buckets))
	case g.Selection != nil && (g.Type != GroupSelect || len(g.Selection.Method) >= selectionNameLen):
		return fmt.Errorf("group %d: a selection method is for select groups and has at most 15 letters", g.ID)
	case 64+len(g.buckets())+len(g.appendProperties(nil)) > wire.MaxMessage:
		return fmt.Errorf("group %d: too large for one OpenFlow message", g.ID)
	}
	return nil
}
