package openflow

import (
	"context"
	"encoding/binary"
	"fmt"
)

// FlowStats is a flow with what it has seen.
type FlowStats struct {
	Flow *Flow
	// Packets and Bytes are counted since the flow was added. What the datapath forwards by itself arrives here within a second.
	Packets, Bytes uint64
}

// FlowStats dumps the flows of all tables with their counters, those of the switch's own making included.
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

// decodeFlowStats reads a flow's description with its counters, which stand between match and instructions.
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

// LearnedCookies returns the cookies of the flows that a flow's actions make the switch add.
func (a Actions) LearnedCookies() []uint64 {
	var cookies []uint64
	for _, action := range a {
		if l, ok := action.(learn); ok && l.Cookie != 0 {
			cookies = append(cookies, l.Cookie)
		}
	}
	return cookies
}
