package ovsdb

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/ovn-kubernetes/libovsdb/ovsdb"

	"weft.dev/weft/internal/ovsdb/confdb"
)

// plan is one planned transaction. It is a pure function of the database's contents and of the change.
type plan struct {
	view   *confdb.View
	change Change

	ops []ovsdb.Operation
	// keys has the row of each operation; the zero Key for operations that serve many rows.
	keys []Key
	// failed are the rows that cannot be written to this database.
	failed map[Key]*PortError
	// created are the rows that the transaction makes.
	created map[Key]bool
	// attach and detach collect, by bridge name, the ports to add to and remove from Bridge.ports, so that a bridge is written once for all
	// its ports.
	attach, detach map[string][]any
	// bridgesIn and bridgesOut are the same for Open_vSwitch.bridges.
	bridgesIn, bridgesOut []any
}

// newPlan returns the operations that make the change. Rows that are already as desired need none.
func newPlan(v *confdb.View, change Change) *plan {
	p := &plan{
		view: v, change: change,
		failed: map[Key]*PortError{}, created: map[Key]bool{},
		attach: map[string][]any{}, detach: map[string][]any{},
	}
	for _, key := range sortedKeys(change.Delete) {
		p.remove(key)
	}
	for _, key := range sortedKeys(change.Set) {
		switch row := change.Set[key].(type) {
		case *Bridge:
			p.setBridge(row)
		case *Port:
			p.setPort(row)
		}
	}
	p.attachPorts()
	if len(p.bridgesIn) > 0 {
		p.mutateSet(confdb.TableRoot, v.Root.UUID, "bridges", ovsdb.MutateOperationInsert, p.bridgesIn)
	}
	if len(p.bridgesOut) > 0 {
		p.mutateSet(confdb.TableRoot, v.Root.UUID, "bridges", ovsdb.MutateOperationDelete, p.bridgesOut)
	}
	return p
}

// remove removes Weft's row from its parent. The database deletes rows that nothing refers to.
func (p *plan) remove(key Key) {
	switch key.Kind {
	case KindBridge:
		if b, ok := p.view.Bridges[key.Name]; ok && b.Own {
			p.bridgesOut = append(p.bridgesOut, ovsdb.UUID{GoUUID: b.Row.UUID})
		}
	case KindPort:
		if port, ok := p.view.Ports[key.Name]; ok && port.Own && !p.goes(port.Bridge.Name) {
			p.detachPort(port)
		}
	}
}

// goes reports whether the change removes the bridge.
func (p *plan) goes(bridge string) bool {
	_, ok := p.change.Delete[BridgeKey(bridge)]
	return ok && p.view.Bridges[bridge] != nil && p.view.Bridges[bridge].Own
}

func (p *plan) detachPort(port *confdb.PortState) {
	p.detach[port.Bridge.Name] = append(p.detach[port.Bridge.Name], ovsdb.UUID{GoUUID: port.Row.UUID})
}

func (p *plan) fail(key Key, cause error, reason string) {
	p.failed[key] = &PortError{Key: key, Reason: reason, Err: cause}
}

func (p *plan) setBridge(want *Bridge) {
	key := want.Key()
	have, ok := p.view.Bridges[want.Name]
	switch {
	case ok && !have.Own:
		p.fail(key, ErrNotOwned, "")
	case ok:
		p.updateBridge(want, have)
	case p.view.Interfaces[want.Name] != "":
		p.fail(key, ErrNotOwned, fmt.Sprintf("its name is that of port %s", p.view.Interfaces[want.Name]))
	default:
		p.insertBridge(want)
	}
}

func (p *plan) insertBridge(want *Bridge) {
	key := want.Key()
	local, iface, bridge := symbol("lp", want.Name), symbol("li", want.Name), symbol("br", want.Name)
	p.insert(key, confdb.TableInterface, iface, ovsdb.Row{"name": want.Name, "type": TypeInternal})
	p.insert(key, confdb.TablePort, local, ovsdb.Row{"name": want.Name, "interfaces": uuidSet(iface)})
	p.insert(key, confdb.TableBridge, bridge, ovsdb.Row{
		"name":          want.Name,
		"datapath_type": want.DatapathType,
		"fail_mode":     optional(want.FailMode),
		"protocols":     stringSet(want.Protocols),
		"other_config":  stringMap(want.OtherConfig),
		"external_ids":  stringMap(withOwner(want.ExternalIDs)),
		"ports":         uuidSet(local),
	})
	p.bridgesIn = append(p.bridgesIn, ovsdb.UUID{GoUUID: bridge})
	p.created[key] = true
}

func (p *plan) updateBridge(want *Bridge, have *confdb.BridgeState) {
	now, row := bridgeOf(have), ovsdb.Row{}
	if want.DatapathType != now.DatapathType {
		row["datapath_type"] = want.DatapathType
	}
	if want.FailMode != now.FailMode {
		row["fail_mode"] = optional(want.FailMode)
	}
	if !slices.Equal(sortedSet(want.Protocols), now.Protocols) {
		row["protocols"] = stringSet(want.Protocols)
	}
	if now.Controllers > 0 {
		row["controller"] = ovsdb.OvsSet{GoSet: []any{}}
	}
	if !maps.Equal(want.OtherConfig, now.OtherConfig) {
		row["other_config"] = stringMap(want.OtherConfig)
	}
	p.update(want.Key(), confdb.TableBridge, have.Row.UUID, row)
	p.updateIDs(want.Key(), confdb.TableBridge, have.Row.UUID, have.Row.ExternalIDs, want.ExternalIDs)
}

func (p *plan) setPort(want *Port) {
	key := want.Key()
	_, made := p.change.Set[BridgeKey(want.Bridge)]
	bridge, there := p.view.Bridges[want.Bridge]
	if !there && (!made || p.failed[BridgeKey(want.Bridge)] != nil) || p.goes(want.Bridge) {
		p.fail(key, ErrNotFound, "bridge "+want.Bridge)
		return
	}
	have, ok := p.view.Ports[want.Name]
	holder, taken := p.view.Interfaces[want.Name]
	switch {
	case ok && !have.Own:
		p.fail(key, ErrNotOwned, "on bridge "+have.Bridge.Name)
	case taken && holder != want.Name && !p.leaves(holder):
		p.fail(key, ErrNotOwned, "as an interface of port "+holder)
	case ok && there && have.Bridge.UUID == bridge.Row.UUID && len(have.Row.Interfaces) == 1 && have.Interface != nil &&
		have.Interface.Name == want.Name:
		p.updatePort(want, have)
	case ok && !p.goes(have.Bridge.Name):
		p.detachPort(have)
		fallthrough
	default:
		p.insertPort(want)
	}
}

// leaves reports whether the change removes the port, so that its interfaces' names become free.
func (p *plan) leaves(port string) bool {
	have, ok := p.view.Ports[port]
	_, deleted := p.change.Delete[PortKey(port)]
	return ok && have.Own && (deleted || p.goes(have.Bridge.Name))
}

func (p *plan) insertPort(want *Port) {
	key := want.Key()
	port, iface := symbol("p", want.Name), symbol("i", want.Name)
	ids := stringMap(withOwner(want.ExternalIDs))
	row := interfaceColumns(want)
	row["name"], row["external_ids"] = want.Name, ids
	p.insert(key, confdb.TableInterface, iface, row)
	p.insert(key, confdb.TablePort, port, ovsdb.Row{"name": want.Name, "interfaces": uuidSet(iface), "external_ids": ids})
	p.attach[want.Bridge] = append(p.attach[want.Bridge], ovsdb.UUID{GoUUID: port})
	p.created[key] = true
}

func (p *plan) updatePort(want *Port, have *confdb.PortState) {
	key, now := want.Key(), portOf(have)
	columns, row := interfaceColumns(want), ovsdb.Row{}
	take := func(column string, differs bool) {
		if differs {
			row[column] = columns[column]
		}
	}
	take("type", want.Type != now.Type)
	take("options", !maps.Equal(want.Options, now.Options))
	take("lldp", want.LLDP != now.LLDP)
	take("mac", want.MAC != now.MAC)
	take("mtu_request", want.MTURequest != now.MTURequest)
	take("ofport_request", int(want.OFPort) != confdb.Optional(have.Interface.OFPortRequest))
	take("ingress_policing_rate", want.IngressRate != now.IngressRate)
	take("ingress_policing_burst", want.IngressBurst != now.IngressBurst)
	p.update(key, confdb.TableInterface, have.Interface.UUID, row)
	p.updateIDs(key, confdb.TableInterface, have.Interface.UUID, have.Interface.ExternalIDs, want.ExternalIDs)
	p.updateIDs(key, confdb.TablePort, have.Row.UUID, have.Row.ExternalIDs, want.ExternalIDs)
}

// interfaceColumns returns the columns that Weft writes into an Interface row, except its name and external_ids.
func interfaceColumns(want *Port) ovsdb.Row {
	lldp := "false"
	if want.LLDP {
		lldp = "true"
	}
	return ovsdb.Row{
		"type":                   want.Type,
		"options":                stringMap(want.Options),
		"lldp":                   stringMap(map[string]string{"enable": lldp}),
		"mac":                    optional(want.MAC),
		"mtu_request":            optional(want.MTURequest),
		"ofport_request":         optional(int(want.OFPort)),
		"ingress_policing_rate":  want.IngressRate,
		"ingress_policing_burst": want.IngressBurst,
	}
}

// attachPorts writes each bridge's list of ports once.
func (p *plan) attachPorts() {
	for _, name := range slices.Sorted(maps.Keys(p.detach)) {
		p.mutateSet(confdb.TableBridge, p.view.Bridges[name].Row.UUID, "ports", ovsdb.MutateOperationDelete, p.detach[name])
	}
	for _, name := range slices.Sorted(maps.Keys(p.attach)) {
		if b, ok := p.view.Bridges[name]; ok {
			p.mutateSet(confdb.TableBridge, b.Row.UUID, "ports", ovsdb.MutateOperationInsert, p.attach[name])
			continue
		}
		p.attachToNew(name)
	}
}

// attachToNew adds the ports to the bridge that the same transaction inserts.
func (p *plan) attachToNew(name string) {
	for i := range p.ops {
		if op := &p.ops[i]; op.Table == confdb.TableBridge && op.UUIDName == symbol("br", name) {
			ports := append([]any{ovsdb.UUID{GoUUID: symbol("lp", name)}}, p.attach[name]...)
			op.Row["ports"] = ovsdb.OvsSet{GoSet: ports}
		}
	}
}

// updateIDs changes external_ids from have to want key by key, so that OVN's keys stay.
func (p *plan) updateIDs(key Key, table, uuid string, have, want map[string]string) {
	want = withOwner(want)
	stale := []any{} // a nil slice would be encoded as null
	fresh := map[string]string{}
	for _, k := range slices.Sorted(maps.Keys(have)) {
		if v, ok := want[k]; (!ok || v != have[k]) && !confdb.KeptByOVN(k) {
			stale = append(stale, k)
		}
	}
	for k, v := range want {
		if old, ok := have[k]; !ok || old != v {
			fresh[k] = v
		}
	}
	if len(stale) == 0 && len(fresh) == 0 {
		return
	}
	p.add(key, ovsdb.Operation{Op: ovsdb.OperationMutate, Table: table, Where: byUUID(uuid), Mutations: []ovsdb.Mutation{
		{Column: "external_ids", Mutator: ovsdb.MutateOperationDelete, Value: ovsdb.OvsSet{GoSet: stale}},
		{Column: "external_ids", Mutator: ovsdb.MutateOperationInsert, Value: stringMap(fresh)},
	}})
}

func (p *plan) insert(key Key, table, name string, row ovsdb.Row) {
	p.add(key, ovsdb.Operation{Op: ovsdb.OperationInsert, Table: table, UUIDName: name, Row: row})
}

func (p *plan) update(key Key, table, uuid string, row ovsdb.Row) {
	if len(row) > 0 {
		p.add(key, ovsdb.Operation{Op: ovsdb.OperationUpdate, Table: table, Where: byUUID(uuid), Row: row})
	}
}

// mutateSet adds values to, or removes them from, a set in a row that serves many keys.
func (p *plan) mutateSet(table, uuid, column string, how ovsdb.Mutator, values []any) {
	p.add(Key{}, ovsdb.Operation{Op: ovsdb.OperationMutate, Table: table, Where: byUUID(uuid), Mutations: []ovsdb.Mutation{
		{Column: column, Mutator: how, Value: ovsdb.OvsSet{GoSet: values}},
	}})
}

func (p *plan) add(key Key, op ovsdb.Operation) {
	p.ops = append(p.ops, op)
	p.keys = append(p.keys, key)
}

func byUUID(uuid string) []ovsdb.Condition {
	return []ovsdb.Condition{ovsdb.NewCondition("_uuid", ovsdb.ConditionEqual, ovsdb.UUID{GoUUID: uuid})}
}

// symbol returns the name by which operations of one transaction refer to a row that it inserts. Names of rows may contain bytes that an
// <id> (RFC 7047, 3.1) must not contain; these are written as numbers.
func symbol(kind, name string) string {
	s := []byte(kind + "_")
	for i := range len(name) {
		if c := name[i]; c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' {
			s = append(s, c)
		} else {
			s = fmt.Appendf(s, "_%02x", c)
		}
	}
	return string(s)
}

func uuidSet(name string) ovsdb.OvsSet { return ovsdb.OvsSet{GoSet: []any{ovsdb.UUID{GoUUID: name}}} }

func stringSet(values []string) ovsdb.OvsSet {
	set := []any{}
	for _, v := range sortedSet(values) {
		set = append(set, v)
	}
	return ovsdb.OvsSet{GoSet: set}
}

func stringMap(m map[string]string) ovsdb.OvsMap {
	out := make(map[any]any, len(m))
	for k, v := range m {
		out[k] = v
	}
	return ovsdb.OvsMap{GoMap: out}
}

// optional returns a column of zero or one value. The zero value of T means no value.
func optional[T comparable](value T) ovsdb.OvsSet {
	var zero T
	if value == zero {
		return ovsdb.OvsSet{GoSet: []any{}}
	}
	return ovsdb.OvsSet{GoSet: []any{value}}
}

func sortedKeys(rows map[Key]Row) []Key {
	return slices.SortedFunc(maps.Keys(rows), compareKeys)
}

func compareKeys(a, b Key) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name))
}
