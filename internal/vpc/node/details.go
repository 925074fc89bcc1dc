package node

import (
	"encoding/json"
	"fmt"

	"weft.dev/weft/internal/attach"
)

// details are what an attachment's record keeps for VPCs.
type details struct {
	// Port is the logical port, Subnet the Subnet's name.
	Port   string `json:"port"`
	Subnet string `json:"subnet"`
}

// portOf returns the logical port of an attachment.
func portOf(rec *attach.Record) (string, error) {
	var d details
	if err := json.Unmarshal(rec.Details, &d); err != nil {
		return "", fmt.Errorf("attachment %s: its record's details cannot be read: %w", rec.Key(), err)
	}
	if d.Port == "" {
		return "", fmt.Errorf("attachment %s: its record names no logical port", rec.Key())
	}
	return d.Port, nil
}
