package openflow

import (
	"encoding/binary"

	"weft.dev/weft/internal/openflow/oxm"
)

// FlowStats is a flow with its counters.
type FlowStats struct {
	Flow *Flow
	// Packets and Bytes are counted since the flow was added. They include packets that the datapath forwarded by itself, with a delay of up
	// to a second.
	Packets, Bytes uint64
}

// DecodeFlowStats decodes a flow's description with its counters, which are between match and instructions.
func DecodeFlowStats(b []byte) (FlowStats, []byte, error) {
	flow, rest, err := decodeFlowDesc(b)
	if err != nil {
		return FlowStats{}, nil, err
	}
	_, counters, err := oxm.DecodeMatch(b[flowDescLen:binary.BigEndian.Uint16(b)])
	if err != nil {
		return FlowStats{}, nil, err
	}
	totals, err := DecodeTotals(counters)
	return FlowStats{Flow: flow, Packets: totals.Packets, Bytes: totals.Bytes}, rest, err
}
