package ovn

import (
	"maps"
	"slices"

	"github.com/ovn-kubernetes/libovsdb/model"

	"weft.dev/weft/internal/ovsdb/session"
)

// The columns of OVN_Northbound (ovn-nb(5)) that the engine reads. They are written by hand: a generated model requires every column of one
// schema version, and so rejects an older server.

const (
	databaseName = "OVN_Northbound"
	globalTable  = "NB_Global"
)

type globalRow struct {
	UUID        string            `ovsdb:"_uuid"`
	ExternalIDs map[string]string `ovsdb:"external_ids"`
	NBCfg       int               `ovsdb:"nb_cfg"`
	SBCfg       int               `ovsdb:"sb_cfg"`
	HVCfg       int               `ovsdb:"hv_cfg"`
}

type routerRow struct {
	UUID         string            `ovsdb:"_uuid"`
	Name         string            `ovsdb:"name"`
	Options      map[string]string `ovsdb:"options"`
	ExternalIDs  map[string]string `ovsdb:"external_ids"`
	Ports        []string          `ovsdb:"ports"`
	StaticRoutes []string          `ovsdb:"static_routes"`
	Policies     []string          `ovsdb:"policies"`
}

type routerPortRow struct {
	UUID        string            `ovsdb:"_uuid"`
	Name        string            `ovsdb:"name"`
	MAC         string            `ovsdb:"mac"`
	Peer        *string           `ovsdb:"peer"`
	Networks    []string          `ovsdb:"networks"`
	Options     map[string]string `ovsdb:"options"`
	ExternalIDs map[string]string `ovsdb:"external_ids"`
}

type routeRow struct {
	UUID        string            `ovsdb:"_uuid"`
	RouteTable  string            `ovsdb:"route_table"`
	IPPrefix    string            `ovsdb:"ip_prefix"`
	Nexthop     string            `ovsdb:"nexthop"`
	Policy      *string           `ovsdb:"policy"`
	Options     map[string]string `ovsdb:"options"`
	ExternalIDs map[string]string `ovsdb:"external_ids"`
}

type policyRow struct {
	UUID        string            `ovsdb:"_uuid"`
	Priority    int               `ovsdb:"priority"`
	Match       string            `ovsdb:"match"`
	Action      string            `ovsdb:"action"`
	Nexthops    []string          `ovsdb:"nexthops"`
	Options     map[string]string `ovsdb:"options"`
	ExternalIDs map[string]string `ovsdb:"external_ids"`
}

type switchRow struct {
	UUID        string            `ovsdb:"_uuid"`
	Name        string            `ovsdb:"name"`
	OtherConfig map[string]string `ovsdb:"other_config"`
	ExternalIDs map[string]string `ovsdb:"external_ids"`
	Ports       []string          `ovsdb:"ports"`
	ACLs        []string          `ovsdb:"acls"`
}

type switchPortRow struct {
	UUID         string            `ovsdb:"_uuid"`
	Name         string            `ovsdb:"name"`
	Type         string            `ovsdb:"type"`
	Addresses    []string          `ovsdb:"addresses"`
	PortSecurity []string          `ovsdb:"port_security"`
	Options      map[string]string `ovsdb:"options"`
	ExternalIDs  map[string]string `ovsdb:"external_ids"`
}

type aclRow struct {
	UUID        string            `ovsdb:"_uuid"`
	Direction   string            `ovsdb:"direction"`
	Priority    int               `ovsdb:"priority"`
	Match       string            `ovsdb:"match"`
	Action      string            `ovsdb:"action"`
	Options     map[string]string `ovsdb:"options"`
	ExternalIDs map[string]string `ovsdb:"external_ids"`
}

func models() map[string]model.Model {
	return map[string]model.Model{
		globalTable: &globalRow{}, string(Router): &routerRow{}, string(RouterPort): &routerPortRow{}, string(Route): &routeRow{},
		string(Policy): &policyRow{}, string(Switch): &switchRow{}, string(SwitchPort): &switchPortRow{}, string(ACL): &aclRow{},
	}
}

func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

type (
	texts   = map[string]string
	numbers = map[string]int
	sets    = map[string][]string
	dicts   = map[string]map[string]string
)

func (r *routerRow) row() Row {
	return Row{Owner: r.ExternalIDs[OwnerKey], Text: texts{"name": r.Name}, Map: dicts{"options": r.Options}}
}

func (r *routerPortRow) row() Row {
	return Row{
		Owner: r.ExternalIDs[OwnerKey], Text: texts{"name": r.Name, "mac": r.MAC, "peer": text(r.Peer)},
		Set: sets{"networks": r.Networks}, Map: dicts{"options": r.Options},
	}
}

func (r *routeRow) row() Row {
	return Row{
		Owner: r.ExternalIDs[OwnerKey],
		Text:  texts{"route_table": r.RouteTable, "ip_prefix": r.IPPrefix, "nexthop": r.Nexthop, "policy": text(r.Policy)},
		Map:   dicts{"options": r.Options},
	}
}

func (r *policyRow) row() Row {
	return Row{
		Owner: r.ExternalIDs[OwnerKey], Text: texts{"match": r.Match, "action": r.Action}, Number: numbers{"priority": r.Priority},
		Set: sets{"nexthops": r.Nexthops}, Map: dicts{"options": r.Options},
	}
}

func (r *switchRow) row() Row {
	return Row{Owner: r.ExternalIDs[OwnerKey], Text: texts{"name": r.Name}, Map: dicts{"other_config": r.OtherConfig}}
}

func (r *switchPortRow) row() Row {
	return Row{
		Owner: r.ExternalIDs[OwnerKey], Text: texts{"name": r.Name, "type": r.Type},
		Set: sets{"addresses": r.Addresses, "port_security": r.PortSecurity}, Map: dicts{"options": r.Options},
	}
}

func (r *aclRow) row() Row {
	return Row{
		Owner: r.ExternalIDs[OwnerKey], Text: texts{"direction": r.Direction, "match": r.Match, "action": r.Action},
		Number: numbers{"priority": r.Priority}, Map: dicts{"options": r.Options},
	}
}

// source is a row of the copy.
type source interface{ row() Row }

// copied is a copy's rows by table and UUID. They belong to the copy, which replaces rows but never writes into them.
type copied map[Table]map[string]model.Model

// view is the copy of the database. It reads a row at its first use, and whole tables only to find a parent, so that the
// cost of a change depends on the rows that it concerns, not on the size of the database.
type view struct {
	session *session.Session
	global  *globalRow
	rows    map[Key]model.Model // those read so far; nil: there is no such row
	tables  copied
	parents map[string]Key // of a child, by its UUID; nil: not read yet
}

func newView(s *session.Session) *view {
	v := &view{session: s, rows: map[Key]model.Model{}, tables: copied{}}
	for _, row := range session.Rows[globalRow](s, globalTable) {
		v.global = row
	}
	return v
}

// table returns the rows of a table.
func (v *view) table(table Table) map[string]model.Model {
	rows, read := v.tables[table]
	if !read {
		rows = session.Models(v.session, string(table))
		v.tables[table] = rows
	}
	return rows
}

// all returns the rows of all tables.
func (v *view) all() copied {
	for _, table := range tables() {
		v.table(table)
	}
	return v.tables
}

// source returns a row of the copy; nil: there is none.
func (v *view) source(key Key) source {
	row, read := v.rows[key]
	if !read {
		if rows, whole := v.tables[key.Table]; whole {
			row = rows[key.UUID]
		} else {
			row = session.Model(v.session, string(key.Table), key.UUID)
			v.rows[key] = row
		}
	}
	found, _ := row.(source)
	return found
}

// row returns a row as a value. Its parent is usually the expected one, for which only that row is read.
func (v *view) row(key, expected Key) (Row, bool) {
	found := v.source(key)
	if found == nil {
		return Row{}, false
	}
	row := found.row()
	row.Parent = v.parent(key, expected)
	row.trim()
	return row, true
}

// trim removes the columns that have the schema's default, and sorts sets. The row's own maps change; the values in them are the copy's.
func (r *Row) trim() {
	maps.DeleteFunc(r.Text, func(_, value string) bool { return value == "" })
	maps.DeleteFunc(r.Number, func(_ string, value int) bool { return value == 0 })
	maps.DeleteFunc(r.Set, func(_ string, value []string) bool { return len(value) == 0 })
	maps.DeleteFunc(r.Map, func(_ string, value map[string]string) bool { return len(value) == 0 })
	for column, set := range r.Set {
		if len(set) > 1 {
			r.Set[column] = sorted(set)
		}
	}
}

// parent returns the router or switch that refers to a row.
func (v *view) parent(key, expected Key) Key {
	if c, ok := schema(key.Table); !ok || c.parent == "" {
		return Key{}
	}
	if v.parents == nil && expected != (Key{}) {
		for _, set := range children(v.source(expected)) {
			if slices.Contains(set, key.UUID) {
				return expected
			}
		}
	}
	if v.parents == nil {
		v.readParents()
	}
	return v.parents[key.UUID]
}

func (v *view) readParents() {
	v.parents = map[string]Key{}
	for _, table := range []Table{Router, Switch} {
		for uuid := range v.table(table) {
			for _, set := range children(v.source(Key{table, uuid})) {
				for _, child := range set {
					v.parents[child] = Key{table, uuid}
				}
			}
		}
	}
}

// children returns the UUIDs of the rows to which a router or a switch refers.
func children(row source) [][]string {
	switch r := row.(type) {
	case *routerRow:
		return [][]string{r.Ports, r.StaticRoutes, r.Policies}
	case *switchRow:
		return [][]string{r.Ports, r.ACLs}
	}
	return nil
}

// own returns all rows with an owner.
func (v *view) own() map[Key]Row {
	own := map[Key]Row{}
	v.readParents()
	for table, rows := range v.all() {
		for uuid := range rows {
			key := Key{table, uuid}
			if row, _ := v.row(key, Key{}); row.Owner != "" {
				own[key] = row
			}
		}
	}
	return own
}
