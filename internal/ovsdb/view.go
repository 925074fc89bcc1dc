package ovsdb

import (
	"fmt"
	"maps"

	"weft.dev/weft/internal/ovsdb/confdb"
)

// ownRows returns the rows that belong to Weft, as values.
func ownRows(v *confdb.View) map[Key]Row {
	rows := make(map[Key]Row, len(v.Ports))
	for name, b := range v.Bridges {
		if b.Own {
			rows[BridgeKey(name)] = bridgeOf(b)
		}
	}
	for name, p := range v.Ports {
		if p.Own {
			rows[PortKey(name)] = portOf(p)
		}
	}
	return rows
}

// verdict returns the switch's error for the row after it was written, or "" if the row is in effect.
func verdict(v *confdb.View, key Key) string {
	b, p := v.Bridges[key.Name], v.Ports[key.Name]
	switch {
	case key.Kind == KindBridge && b != nil:
		return b.Failure()
	case key.Kind == KindPort && p != nil && p.Interface != nil:
		if on := v.Bridges[p.Bridge.Name]; on != nil && p.Interface.OFPort == nil && on.Failure() != "" {
			return fmt.Sprintf("bridge %s: %s", p.Bridge.Name, on.Failure())
		}
		return p.SwitchFailure()
	default:
		return "another program removed it at once"
	}
}

// bridgeOf converts the bridge. The maps are copies: the rows belong to the cache.
func bridgeOf(b *confdb.BridgeState) *Bridge {
	return &Bridge{
		Name:         b.Row.Name,
		DatapathType: b.Row.DatapathType,
		FailMode:     confdb.Optional(b.Row.FailMode),
		Protocols:    sortedSet(b.Row.Protocols),
		OtherConfig:  maps.Clone(b.Row.OtherConfig),
		ExternalIDs:  confdb.VisibleIDs(b.Row.ExternalIDs),
		Controllers:  len(b.Row.Controller),
		Failure:      b.Failure(),
	}
}

// portOf converts the port.
func portOf(p *confdb.PortState) *Port {
	v := &Port{Bridge: p.Bridge.Name, Name: p.Row.Name, ExternalIDs: confdb.VisibleIDs(p.Row.ExternalIDs), Failure: p.Failure()}
	if p.Interface == nil {
		return v
	}
	i := p.Interface
	v.Type = i.Type
	if v.Type == confdb.TypeSystem {
		v.Type = TypeLink
	}
	if request := confdb.Optional(i.OFPortRequest); request > 0 && request <= maxOFPort {
		v.OFPort = uint16(request)
	}
	v.Options = maps.Clone(i.Options)
	v.MAC = confdb.Optional(i.MAC)
	v.MTURequest = confdb.Optional(i.MTURequest)
	v.LLDP = i.LLDP["enable"] == "true"
	v.IngressRate = i.IngressPolicingRate
	v.IngressBurst = i.IngressPolicingBurst
	return v
}
