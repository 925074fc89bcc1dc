package openflow

import (
	"context"
	"encoding/binary"
	"fmt"
)

// FlowStats is a flow with its counters.
type FlowStats struct {
	Flow *Flow
	// Packets and Bytes are counted since the flow was added. They include packets that the datapath forwarded by itself, with a delay of up
	// to a second.
	Packets, Bytes uint64
}

// FlowStats dumps the flows of all tables with their counters, including those that the switch itself added.
func (c *Conn) FlowStats(ctx context.Context) ([]FlowStats, error) {
	k, err := c.exchange(ctx, "flow dump", flowsRequest(partFlowDesc, tableAll))
	if err != nil {
		return nil, err
	}
	var all []FlowStats
	for _, part := range k.parts {
		for len(part) > 0 {
			var f FlowStats
			if f, part, err = decodeFlowStats(part); err != nil {
				return nil, fmt.Errorf("flow %d of a dump: %w", len(all), err)
			}
			all = append(all, f)
		}
	}
	return all, nil
}

// decodeFlowStats decodes a flow's description with its counters, which are between match and instructions.
func decodeFlowStats(b []byte) (FlowStats, []byte, error) {
	flow, rest, err := decodeFlowDesc(b)
	if err != nil {
		return FlowStats{}, nil, err
	}
	_, counters, err := decodeMatch(b[flowDescLen:binary.BigEndian.Uint16(b)])
	if err != nil {
		return FlowStats{}, nil, err
	}
	totals, err := decodeTotals(counters)
	return FlowStats{Flow: flow, Packets: totals.Packets, Bytes: totals.Bytes}, rest, err
}

// LearnedCookies returns the cookies of the flows that the learn actions in the list add.
func (a Actions) LearnedCookies() []uint64 {
	var cookies []uint64
	for _, action := range a {
		if l, ok := action.(learn); ok && l.Cookie != 0 {
			cookies = append(cookies, l.Cookie)
		}
	}
	return cookies
}
