package ovsdb

import (
	"fmt"

	"github.com/ovn-kubernetes/libovsdb/client"
	"github.com/ovn-kubernetes/libovsdb/model"
	"github.com/ovn-kubernetes/libovsdb/ovsdb"
)

// The tables and columns of Open_vSwitch (ovs-vswitchd.conf.db(5)) that Weft reads. They are written by hand and not
// generated: a generated model asks for every column of one schema version, so that a client made from it refuses an
// older switch, and a monitor over all columns is told of every interface's statistics every few seconds.

const databaseName = "Open_vSwitch"

// Names of the tables.
const (
	tableRoot      = "Open_vSwitch"
	tableBridge    = "Bridge"
	tablePort      = "Port"
	tableInterface = "Interface"
)

type rootRow struct {
	UUID          string   `ovsdb:"_uuid"`
	Bridges       []string `ovsdb:"bridges"`
	CurCfg        int      `ovsdb:"cur_cfg"`
	NextCfg       int      `ovsdb:"next_cfg"`
	DatapathTypes []string `ovsdb:"datapath_types"`
	OVSVersion    *string  `ovsdb:"ovs_version"`
}

type bridgeRow struct {
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

type portRow struct {
	UUID        string            `ovsdb:"_uuid"`
	Name        string            `ovsdb:"name"`
	Interfaces  []string          `ovsdb:"interfaces"`
	ExternalIDs map[string]string `ovsdb:"external_ids"`
}

type interfaceRow struct {
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

// databaseModel returns the client's view of the schema.
func databaseModel() (model.ClientDBModel, error) {
	m, err := model.NewClientDBModel(databaseName, map[string]model.Model{
		tableRoot:      &rootRow{},
		tableBridge:    &bridgeRow{},
		tablePort:      &portRow{},
		tableInterface: &interfaceRow{},
	})
	if err != nil {
		return m, fmt.Errorf("model of database %s: %w", databaseName, err)
	}
	return m, nil
}

// monitorRequest asks for the modelled columns only. The method is set: what the library chooses by default resumes
// from a transaction number that its cache may not match.
func monitorRequest() *client.Monitor {
	return &client.Monitor{
		Method: ovsdb.ConditionalMonitorRPC,
		Tables: []client.TableMonitor{
			{Table: tableRoot, Fields: []string{"bridges", "cur_cfg", "next_cfg", "datapath_types", "ovs_version"}},
			{Table: tableBridge, Fields: []string{
				"name", "datapath_type", "fail_mode", "protocols", "other_config", "external_ids", "ports", "controller",
			}},
			{Table: tablePort, Fields: []string{"name", "interfaces", "external_ids"}},
			{Table: tableInterface, Fields: []string{
				"name", "type", "options", "external_ids", "lldp", "mac", "mtu_request", "ofport_request",
				"ingress_policing_rate", "ingress_policing_burst", "ofport", "error", "ifindex",
			}},
		},
	}
}
