package ovn

import (
	"maps"

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

// view is the copy of the database at one moment. Its rows belong to the copy, which replaces rows but never writes into them.
type view struct {
	global  *globalRow
	rows    map[Key]interface{ row() Row }
	parents map[string]Key // of a child, by its UUID
}

// newView returns a view of the copy's rows.
func newView(s *session.Session) *view {
	v := &view{rows: map[Key]interface{ row() Row }{}, parents: map[string]Key{}}
	for _, row := range session.Rows[globalRow](s, globalTable) {
		v.global = row
	}
	for uuid, row := range session.Rows[routerRow](s, string(Router)) {
		v.add(Key{Router, uuid}, row, row.Ports, row.StaticRoutes, row.Policies)
	}
	for uuid, row := range session.Rows[switchRow](s, string(Switch)) {
		v.add(Key{Switch, uuid}, row, row.Ports, row.ACLs)
	}
	collect[routerPortRow](v, s, RouterPort)
	collect[routeRow](v, s, Route)
	collect[policyRow](v, s, Policy)
	collect[switchPortRow](v, s, SwitchPort)
	collect[aclRow](v, s, ACL)
	return v
}

func (v *view) add(key Key, row interface{ row() Row }, children ...[]string) {
	v.rows[key] = row
	for _, set := range children {
		for _, child := range set {
			v.parents[child] = key
		}
	}
}

func collect[T any, P interface {
	*T
	row() Row
}](v *view, s *session.Session, table Table) {
	for uuid, row := range session.Rows[T](s, string(table)) {
		v.rows[Key{table, uuid}] = P(row)
	}
}

// row returns a row as a value.
func (v *view) row(key Key) (Row, bool) {
	source, there := v.rows[key]
	if !there {
		return Row{}, false
	}
	row := source.row()
	row.Parent = v.parents[key.UUID]
	row.Text, row.Number, row.Set, row.Map = row.texts(), row.numbers(), row.sets(), row.dicts()
	return row, true
}

// own returns all rows with an owner.
func (v *view) own() map[Key]Row {
	own := make(map[Key]Row, len(v.rows))
	for key := range v.rows {
		if row, _ := v.row(key); row.Owner != "" {
			own[key] = row
		}
	}
	return own
}

// sources returns the rows of which the view consists, for a comparison without reading.
func (v *view) sources() map[Key]any {
	all := make(map[Key]any, len(v.rows))
	for key, row := range v.rows {
		all[key] = row
	}
	return maps.Clone(all)
}
