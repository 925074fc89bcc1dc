package node

import (
	"encoding/json"
	"fmt"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/ovsport"
)

// details are what an attachment's record stores for VPCs.
type details struct {
	// Port is the logical port, Subnet the Subnet's name.
	Port   string `json:"port"`
	Subnet string `json:"subnet"`
	// Gateway is the VpcNatGateway of a gateway's pod; empty for any other pod.
	Gateway string `json:"gateway,omitempty"`
}

// gatewayOf returns the VpcNatGateway of an attachment of a gateway's pod; empty for any other pod.
func gatewayOf(rec *attach.Record) string {
	var d details
	if json.Unmarshal(rec.Details, &d) != nil {
		return "" // portOf reports it
	}
	return d.Gateway
}

// portOf returns the port of an attachment on the integration bridge.
func portOf(rec *attach.Record) (ovsport.Port, error) {
	var d details
	if err := json.Unmarshal(rec.Details, &d); err != nil {
		return ovsport.Port{}, fmt.Errorf("attachment %s: its record's details cannot be read: %w", rec.Key(), err)
	}
	if d.Port == "" {
		return ovsport.Port{}, fmt.Errorf("attachment %s: its record names no logical port", rec.Key())
	}
	return ovsport.Port{Device: rec.HostInterface, IfaceID: d.Port, Owner: rec.Key().Owner()}, nil
}
