package ovsdb

import (
	"encoding/json"
	"errors"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/ovn-kubernetes/libovsdb/ovsdb"
	"pgregory.net/rapid"

	"weft.dev/weft/internal/ovsdb/confdb"
	"weft.dev/weft/internal/reconcile"
)

func TestValidName(t *testing.T) {
	for name, ok := range map[string]bool{
		"br0": true, "veth0a1b2c3d": true, "tun0.5": true, "a_b-c": true, "123456789012345": true,
		"": false, "1234567890123456": false, "-rf": false, ".": false, "..": false, "a/b": false, "a b": false,
		"a\n": false, "é": false, "a;b": false, "a*": false, "_a": false, "a\x00": false,
	} {
		if err := ValidName(name); (err == nil) != ok || err != nil && !errors.Is(err, ErrInvalid) {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestValidate(t *testing.T) {
	port := func(change func(*Port)) Row {
		p := &Port{Bridge: "br0", Name: "pod1"}
		change(p)
		return p
	}
	bridge := func(change func(*Bridge)) Row {
		b := &Bridge{Name: "br0"}
		change(b)
		return b
	}
	big := map[string]string{}
	for i := range maxEntries + 1 {
		big[strings.Repeat("k", i+1)] = ""
	}
	for name, row := range map[string]Row{
		"bridge's name":    port(func(p *Port) { p.Bridge = "" }),
		"local port":       port(func(p *Port) { p.Name = "br0" }),
		"type":             port(func(p *Port) { p.Type = "gre" }),
		"number":           port(func(p *Port) { p.OFPort = 65280 }),
		"mac":              port(func(p *Port) { p.MAC = "0A:58:00:00:00:01" }),
		"multicast mac":    port(func(p *Port) { p.MAC = "01:00:5e:00:00:01" }),
		"mtu":              port(func(p *Port) { p.MTURequest = 10 }),
		"rate":             port(func(p *Port) { p.IngressRate = -1 }),
		"burst":            port(func(p *Port) { p.IngressBurst = maxPolicing + 1 }),
		"option key":       port(func(p *Port) { p.Options = map[string]string{"": "x"} }),
		"option value":     port(func(p *Port) { p.Options = map[string]string{"x": "a\nb"} }),
		"long value":       port(func(p *Port) { p.ExternalIDs = map[string]string{"x": strings.Repeat("a", 2000)} }),
		"not UTF-8":        port(func(p *Port) { p.ExternalIDs = map[string]string{"x": "\xff"} }),
		"many ids":         port(func(p *Port) { p.ExternalIDs = big }),
		"OVN's id":         port(func(p *Port) { p.ExternalIDs = map[string]string{"ovn-installed": "true"} }),
		"datapath":         bridge(func(b *Bridge) { b.DatapathType = "dummy" }),
		"fail mode":        bridge(func(b *Bridge) { b.FailMode = "open" }),
		"protocol":         bridge(func(b *Bridge) { b.Protocols = []string{"OpenFlow16"} }),
		"hwaddr":           bridge(func(b *Bridge) { b.OtherConfig = map[string]string{"hwaddr": "x"} }),
		"name of a bridge": bridge(func(b *Bridge) { b.Name = "br 0" }),
	} {
		if err := row.Validate(); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestString(t *testing.T) {
	p := &Port{Bridge: "br0", Name: "vxlan0", Type: TypeVXLAN, OFPort: 1, Options: map[string]string{"key": "flow", "a": ""}}
	want := `port vxlan0 bridge=br0 type=vxlan ofport_request=1 options:a="" options:key="flow"`
	if got := p.String(); got != want {
		t.Errorf("got %s", got)
	}
}

func TestFailedKeys(t *testing.T) {
	one, two := &PortError{Key: PortKey("a")}, &PortError{Key: PortKey("b"), Err: ErrNotFound}
	for name, c := range map[string]struct {
		err   error
		keys  int
		whole bool
	}{
		"none":             {nil, 0, false},
		"joined":           {errors.Join(one, two), 2, false},
		"wrapped":          {errors.Join(errors.Join(one), nil), 1, false},
		"more than a row":  {errors.Join(one, ErrNotApplied), 1, true},
		"not about a row":  {ErrNotConnected, 0, true},
		"one by one again": {one, 1, false},
	} {
		if failed, whole := FailedKeys(c.err); len(failed) != c.keys || whole != c.whole {
			t.Errorf("%s: %v, %v", name, failed, whole)
		}
	}
}

// rowGen draws rows that are valid.
func rowGen(t *rapid.T) Row {
	name := rapid.StringMatching(`[a-z][a-z0-9._-]{0,14}`)
	text := rapid.MapOfN(rapid.StringMatching(`[a-z_.:-]{1,8}`), rapid.StringMatching(`[ -~é]{0,12}`), 0, 4)
	if rapid.Bool().Draw(t, "bridge") {
		return &Bridge{
			Name:         name.Draw(t, "name"),
			DatapathType: rapid.SampledFrom([]string{"", DatapathNetdev, DatapathSystem}).Draw(t, "datapath"),
			FailMode:     rapid.SampledFrom([]string{"", "secure", "standalone"}).Draw(t, "fail"),
			Protocols:    rapid.SliceOfN(rapid.SampledFrom([]string{"OpenFlow13", "OpenFlow15"}), 0, 3).Draw(t, "protocols"),
			OtherConfig:  text.Draw(t, "config"), ExternalIDs: text.Draw(t, "ids"),
		}
	}
	return &Port{
		Bridge: "WT0", Name: name.Draw(t, "name"),
		Type:   rapid.SampledFrom([]string{TypeLink, TypeInternal, TypeVXLAN, TypePatch}).Draw(t, "type"),
		OFPort: rapid.Uint16Range(0, maxOFPort).Draw(t, "ofport"), Options: text.Draw(t, "options"),
		MAC:        rapid.SampledFrom([]string{"", "0a:58:0a:80:00:01"}).Draw(t, "mac"),
		MTURequest: rapid.SampledFrom([]int{0, 68, 1450}).Draw(t, "mtu"), LLDP: rapid.Bool().Draw(t, "lldp"),
		IngressRate: rapid.IntRange(0, 9).Draw(t, "rate"), IngressBurst: rapid.IntRange(0, 9).Draw(t, "burst"),
		ExternalIDs: text.Draw(t, "ids"),
	}
}

// A plan for any rows makes any database hold those rows; a second plan then has nothing to do.
func TestPlanReachesWhatIsDesired(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		db := newMemory()
		base := &Bridge{Name: "WT0", ExternalIDs: map[string]string{OwnerID: ""}}
		for range 3 {
			desired := map[Key]Row{base.Key(): base}
			for _, row := range rapid.SliceOfN(rapid.Custom(rowGen), 0, 5).Draw(t, "rows") {
				if !taken(desired, row) {
					desired[row.Key()] = row
				}
			}
			change := reconcile.Diff(desired, ownRows(db.view()))
			p := newPlan(db.view(), change)
			if len(p.failed) > 0 {
				// A bridge replaces a port of the same name: the port is removed first, as a caller does after the error.
				p = newPlan(db.view(), Change{Delete: change.Delete})
				db.apply(t, p)
				change = reconcile.Diff(desired, ownRows(db.view()))
				p = newPlan(db.view(), change)
			}
			db.apply(t, p)
			if rest := reconcile.Diff(desired, ownRows(db.view())); !rest.Empty() {
				t.Fatalf("left to do: %v", rest)
			}
			if again := newPlan(db.view(), Change{Set: desired}); len(again.ops) != 0 {
				t.Fatalf("written again: %+v", again.ops)
			}
		}
	})
}

func taken(rows map[Key]Row, row Row) bool {
	_, bridge := rows[BridgeKey(row.Key().Name)]
	_, port := rows[PortKey(row.Key().Name)]
	return bridge || port
}

// memory executes the operations of a plan on tables, as ovsdb-server and a switch without failures do.
type memory struct {
	confdb.Tables
	next int
}

func newMemory() *memory {
	return &memory{Tables: confdb.Tables{
		Root: map[string]*confdb.Root{"root": {UUID: "root"}}, Bridges: map[string]*confdb.Bridge{},
		Ports: map[string]*confdb.Port{}, Interfaces: map[string]*confdb.Interface{},
	}}
}

func (m *memory) view() *confdb.View { return confdb.NewView(m.Tables, confdb.Claim{}) }

func (m *memory) apply(t *rapid.T, p *plan) {
	names := map[string]string{}
	for _, op := range p.ops {
		if op.Op == ovsdb.OperationInsert {
			names[op.UUIDName] = op.Table + "/" + op.UUIDName + "/" + string(rune('a'+m.next))
		}
	}
	m.next++
	for _, op := range p.ops {
		switch op.Op {
		case ovsdb.OperationInsert:
			m.write(t, op.Table, names[op.UUIDName], op.Row, names)
		case ovsdb.OperationUpdate:
			m.write(t, op.Table, op.Where[0].Value.(ovsdb.UUID).GoUUID, op.Row, names)
		case ovsdb.OperationMutate:
			m.mutate(op, names)
		}
	}
	m.collect()
}

// row returns the row, and makes it if it is missing.
func (m *memory) row(table, uuid string) any {
	switch table {
	case confdb.TableRoot:
		return m.Root[uuid]
	case confdb.TableBridge:
		if m.Bridges[uuid] == nil {
			m.Bridges[uuid] = &confdb.Bridge{UUID: uuid}
		}
		return m.Bridges[uuid]
	case confdb.TablePort:
		if m.Ports[uuid] == nil {
			m.Ports[uuid] = &confdb.Port{UUID: uuid}
		}
		return m.Ports[uuid]
	default:
		if m.Interfaces[uuid] == nil {
			m.Interfaces[uuid] = &confdb.Interface{UUID: uuid}
		}
		return m.Interfaces[uuid]
	}
}

// column returns the struct field of the column.
func column(row any, name string) reflect.Value {
	v := reflect.ValueOf(row).Elem()
	for i := range v.NumField() {
		if v.Type().Field(i).Tag.Get("ovsdb") == name {
			return v.Field(i)
		}
	}
	return reflect.Value{}
}

func (m *memory) write(t *rapid.T, table, uuid string, row ovsdb.Row, names map[string]string) {
	r := m.row(table, uuid)
	for name, value := range row {
		c := column(r, name)
		if !c.IsValid() {
			t.Fatalf("%s has no column %s", table, name)
		}
		switch v := value.(type) {
		case ovsdb.OvsMap:
			c.Set(reflect.ValueOf(nativeMap(v)))
		case ovsdb.OvsSet:
			if c.Kind() == reflect.Slice {
				c.Set(reflect.ValueOf(nativeSet(v, names)))
				continue
			}
			c.SetZero()
			if len(v.GoSet) == 1 {
				c.Set(reflect.New(c.Type().Elem()))
				c.Elem().Set(reflect.ValueOf(v.GoSet[0]))
			}
		default:
			c.Set(reflect.ValueOf(value))
		}
	}
}

func (m *memory) mutate(op ovsdb.Operation, names map[string]string) {
	r := m.row(op.Table, op.Where[0].Value.(ovsdb.UUID).GoUUID)
	for _, mutation := range op.Mutations {
		c := column(r, mutation.Column)
		switch v := mutation.Value.(type) {
		case ovsdb.OvsMap:
			have := maps.Clone(c.Interface().(map[string]string))
			if have == nil {
				have = map[string]string{}
			}
			for k, val := range nativeMap(v) {
				if _, ok := have[k]; !ok { // insert does not replace, RFC 7047, 5.1
					have[k] = val
				}
			}
			c.Set(reflect.ValueOf(have))
		case ovsdb.OvsSet:
			values := nativeSet(v, names)
			switch have := c.Interface().(type) {
			case map[string]string:
				have = maps.Clone(have)
				for _, k := range values {
					delete(have, k)
				}
				c.Set(reflect.ValueOf(have))
			case []string:
				if mutation.Mutator == ovsdb.MutateOperationInsert {
					have = append(slices.Clone(have), values...)
				} else {
					have = slices.DeleteFunc(slices.Clone(have), func(s string) bool { return slices.Contains(values, s) })
				}
				c.Set(reflect.ValueOf(have))
			}
		}
	}
}

// collect deletes rows that nothing refers to, and brings the others into effect, as the switch does.
func (m *memory) collect() {
	var bridges, ports, interfaces []string
	bridges = m.Root["root"].Bridges
	maps.DeleteFunc(m.Bridges, func(uuid string, b *confdb.Bridge) bool {
		keep := slices.Contains(bridges, uuid)
		if keep {
			ports = append(ports, b.Ports...)
		}
		return !keep
	})
	maps.DeleteFunc(m.Ports, func(uuid string, p *confdb.Port) bool {
		keep := slices.Contains(ports, uuid)
		if keep {
			interfaces = append(interfaces, p.Interfaces...)
		}
		return !keep
	})
	maps.DeleteFunc(m.Interfaces, func(uuid string, _ *confdb.Interface) bool { return !slices.Contains(interfaces, uuid) })
	for _, i := range m.Interfaces {
		number := confdb.Optional(i.OFPortRequest)
		if number == 0 {
			number = 9
		}
		i.OFPort = &number
	}
	for _, b := range m.Bridges {
		if p := m.Ports[b.Ports[0]]; p != nil && p.Name == b.Name {
			number := confdb.LocalPort
			m.Interfaces[p.Interfaces[0]].OFPort = &number
		}
	}
}

func nativeMap(v ovsdb.OvsMap) map[string]string {
	out := map[string]string{}
	for k, val := range v.GoMap {
		out[k.(string)] = val.(string)
	}
	return out
}

func nativeSet(v ovsdb.OvsSet, names map[string]string) []string {
	out := []string{}
	for _, e := range v.GoSet {
		switch x := e.(type) {
		case ovsdb.UUID:
			if uuid, ok := names[x.GoUUID]; ok {
				out = append(out, uuid)
			} else {
				out = append(out, x.GoUUID)
			}
		case string:
			out = append(out, x)
		}
	}
	return out
}

func TestMailboxJoins(t *testing.T) {
	m := newMailbox()
	m.post(Event{Kind: EventDrift, Keys: []Key{PortKey("b"), PortKey("a")}})
	m.post(Event{Kind: EventReconnected})
	m.post(Event{Kind: EventDrift, Keys: []Key{PortKey("a"), BridgeKey("z")}})
	stop := make(chan struct{})
	defer close(stop)
	go m.run(stop)
	want := []Event{
		{Kind: EventDrift, Keys: []Key{BridgeKey("z"), PortKey("a"), PortKey("b")}}, {Kind: EventReconnected},
	}
	if diff := cmp.Diff(want, []Event{<-m.out, <-m.out}); diff != "" {
		t.Error(diff)
	}
}

// FuzzView arranges any contents of a database: rows that refer to missing rows or to each other, rows with odd names and values. Nothing
// may panic, and a plan that removes all of Weft's rows must exist.
func FuzzView(f *testing.F) {
	f.Fuzz(func(t *testing.T, data []byte) {
		var in struct {
			Root       map[string]*confdb.Root
			Bridges    map[string]*confdb.Bridge
			Ports      map[string]*confdb.Port
			Interfaces map[string]*confdb.Interface
		}
		if json.Unmarshal(data, &in) != nil {
			return
		}
		maps.DeleteFunc(in.Root, func(_ string, r *confdb.Root) bool { return r == nil })
		maps.DeleteFunc(in.Bridges, func(_ string, r *confdb.Bridge) bool { return r == nil })
		maps.DeleteFunc(in.Ports, func(_ string, r *confdb.Port) bool { return r == nil })
		maps.DeleteFunc(in.Interfaces, func(_ string, r *confdb.Interface) bool { return r == nil })
		v := confdb.NewView(confdb.Tables{Root: in.Root, Bridges: in.Bridges, Ports: in.Ports, Interfaces: in.Interfaces}, confdb.Claim{Bridges: []string{"br0"}})
		rows := ownRows(v)
		for key, row := range rows {
			if !row.Equal(row) || row.Key() != key {
				t.Errorf("%v reads as %v", key, row)
			}
			_, _ = row.String(), verdict(v, key)
			_ = row.Validate()
		}
		if v.Root != nil {
			newPlan(v, Change{Delete: rows})
			newPlan(v, Change{Set: rows})
		}
	})
}
