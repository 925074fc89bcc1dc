package confdb

import "github.com/ovn-kubernetes/libovsdb/model"

// The tables and columns of Open_vSwitch (ovs-vswitchd.conf.db(5)) that Weft reads. They are written by hand, not generated. A generated
// model requires every column of one schema version, so that its client refuses an older switch. A monitor of all columns gets every
// interface's statistics every few seconds.

// Database is the name of the database.
const Database = "Open_vSwitch"

// Names of the tables.
const (
	TableRoot      = "Open_vSwitch"
	TableBridge    = "Bridge"
	TablePort      = "Port"
	TableInterface = "Interface"
)

// Root is the one row of the table Open_vSwitch.
type Root struct {
	UUID          string            `ovsdb:"_uuid"`
	Bridges       []string          `ovsdb:"bridges"`
	CurCfg        int               `ovsdb:"cur_cfg"`
	NextCfg       int               `ovsdb:"next_cfg"`
	DatapathTypes []string          `ovsdb:"datapath_types"`
	OVSVersion    *string           `ovsdb:"ovs_version"`
	ExternalIDs   map[string]string `ovsdb:"external_ids"`
}

// Bridge is a row of the table Bridge.
type Bridge struct {
	UUID         string            `ovsdb:"_uuid"`
	Name         string            `ovsdb:"name"`
	DatapathType string            `ovsdb:"datapath_type"`
	FailMode     *string           `ovsdb:"fail_mode"`
	Protocols    []string          `ovsdb:"protocols"`
	OtherConfig  map[string]string `ovsdb:"other_config"`
	ExternalIDs  map[string]string `ovsdb:"external_ids"`
	Ports        []string          `ovsdb:"ports"`
	Controller   []string          `ovsdb:"controller"`
}

// Port is a row of the table Port.
type Port struct {
	UUID        string            `ovsdb:"_uuid"`
	Name        string            `ovsdb:"name"`
	Interfaces  []string          `ovsdb:"interfaces"`
	Tag         *int              `ovsdb:"tag"`
	ExternalIDs map[string]string `ovsdb:"external_ids"`
}

// Interface is a row of the table Interface.
type Interface struct {
	UUID                 string            `ovsdb:"_uuid"`
	Name                 string            `ovsdb:"name"`
	Type                 string            `ovsdb:"type"`
	Options              map[string]string `ovsdb:"options"`
	ExternalIDs          map[string]string `ovsdb:"external_ids"`
	LLDP                 map[string]string `ovsdb:"lldp"`
	MAC                  *string           `ovsdb:"mac"`
	MTURequest           *int              `ovsdb:"mtu_request"`
	OFPortRequest        *int              `ovsdb:"ofport_request"`
	IngressPolicingRate  int               `ovsdb:"ingress_policing_rate"`
	IngressPolicingBurst int               `ovsdb:"ingress_policing_burst"`
	OFPort               *int              `ovsdb:"ofport"`
	IfIndex              *int              `ovsdb:"ifindex"`
	Error                *string           `ovsdb:"error"`
}

// Monitored returns a client's view of the schema: the tables, and of each the columns of its row.
func Monitored() map[string]model.Model {
	return map[string]model.Model{
		TableRoot:      &Root{},
		TableBridge:    &Bridge{},
		TablePort:      &Port{},
		TableInterface: &Interface{},
	}
}
