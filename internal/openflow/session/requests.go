package session

import (
	"context"
	"fmt"

	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/openflow/action"
	"weft.dev/weft/internal/openflow/wire"
)

// Features requests the switch's features.
func (c *Conn) Features(ctx context.Context) (openflow.Features, error) {
	k, err := c.channel.exchange(ctx, "features request", openflow.Message{Kind: openflow.MsgFeaturesRequest})
	if err != nil {
		return openflow.Features{}, err
	}
	return openflow.DecodeFeatures(k.reply.Body)
}

// Echo checks that the switch answers.
func (c *Conn) Echo(ctx context.Context) error {
	_, err := c.channel.exchange(ctx, "echo request", openflow.Message{Kind: openflow.MsgEchoRequest, Body: []byte("weft")})
	return err
}

// Barrier returns once the switch has processed all earlier messages of the connection.
func (c *Conn) Barrier(ctx context.Context) error {
	_, err := c.channel.exchange(ctx, "barrier", openflow.Message{Kind: openflow.MsgBarrierRequest})
	return err
}

// Flows dumps the flows of all tables, including those that the switch itself added.
func (c *Conn) Flows(ctx context.Context) ([]*openflow.Flow, error) {
	k, err := c.channel.exchange(ctx, "flow dump", openflow.FlowsRequest(openflow.PartFlowDesc))
	if err != nil {
		return nil, err
	}
	var flows []*openflow.Flow
	for _, part := range k.parts {
		some, err := openflow.DecodeFlows(part)
		if err != nil {
			return nil, err
		}
		flows = append(flows, some...)
	}
	return flows, nil
}

// Groups dumps the groups.
func (c *Conn) Groups(ctx context.Context) ([]*openflow.Group, error) {
	k, err := c.channel.exchange(ctx, "group dump", openflow.GroupsRequest())
	if err != nil {
		return nil, err
	}
	var groups []*openflow.Group
	for _, part := range k.parts {
		some, err := openflow.DecodeGroups(part)
		if err != nil {
			return nil, err
		}
		groups = append(groups, some...)
	}
	return groups, nil
}

// Ports lists the bridge's ports.
func (c *Conn) Ports(ctx context.Context) ([]openflow.Port, error) {
	k, err := c.channel.exchange(ctx, "port list", openflow.PortsRequest())
	if err != nil {
		return nil, err
	}
	var ports []openflow.Port
	for _, part := range k.parts {
		some, err := openflow.DecodePorts(part)
		if err != nil {
			return nil, err
		}
		ports = append(ports, some...)
	}
	return ports, nil
}

// Describe requests the switch's description of itself.
func (c *Conn) Describe(ctx context.Context) (openflow.SwitchDesc, error) {
	k, err := c.channel.exchange(ctx, "description", openflow.Multipart(openflow.PartDesc, nil))
	if err != nil {
		return openflow.SwitchDesc{}, err
	}
	if len(k.parts) != 1 {
		return openflow.SwitchDesc{}, wire.Malformed("switch description")
	}
	return openflow.DecodeSwitchDesc(k.parts[0])
}

// Aggregate sums up the flows of all tables and their counters.
func (c *Conn) Aggregate(ctx context.Context) (openflow.Totals, error) {
	k, err := c.channel.exchange(ctx, "aggregate", openflow.FlowsRequest(openflow.PartAggregate))
	if err != nil {
		return openflow.Totals{}, err
	}
	if len(k.parts) != 1 {
		return openflow.Totals{}, wire.Malformed("aggregate")
	}
	return openflow.DecodeTotals(k.parts[0])
}

// Monitor requests reports of flow changes by others. OnAsync gets them as []openflow.FlowUpdate.
func (c *Conn) Monitor(ctx context.Context, id uint32) error {
	_, err := c.channel.exchange(ctx, "flow monitor", openflow.MonitorRequest(id))
	return err
}

// MonitorRest requests the reports that openflow.AsyncConfig names.
func (c *Conn) MonitorRest(ctx context.Context) error {
	// A connection to a bridge's own socket gets no such reports before it has set a miss_send_len (Open vSwitch, ofconn_receives_async_msg).
	return c.confirmed(ctx, "monitor of groups and ports", openflow.AsyncConfig(), openflow.SwitchConfig(1))
}

// FlushCT removes connections from the connection tracker of the bridge's datapath. The userspace datapath has its own tracker, not the
// kernel's. FlushCT needs Open vSwitch 3.1 unless only a zone is given.
func (c *Conn) FlushCT(ctx context.Context, what openflow.CTFlush) error {
	return c.confirmed(ctx, what.String(), what.Message())
}

// PacketOut sends a packet through actions, as if the packet had come in by port.
func (c *Conn) PacketOut(ctx context.Context, port uint32, actions action.Actions, packet []byte) error {
	return c.confirmed(ctx, "packet-out", openflow.PacketOut(port, actions, packet))
}

// SetMissSendLen makes the switch send packet-ins and port changes to this connection. A connection to a bridge's own socket does not get
// them otherwise.
func (c *Conn) SetMissSendLen(ctx context.Context, n uint16) error {
	return c.confirmed(ctx, "configuration", openflow.SwitchConfig(n))
}

// confirmed sends messages that have no answer, and returns once the switch has processed them.
func (c *Conn) confirmed(ctx context.Context, what string, messages ...openflow.Message) error {
	_, err := c.channel.exchange(ctx, what, append(messages, openflow.Message{Kind: openflow.MsgBarrierRequest})...)
	return err
}

// FlowStats dumps the flows of all tables with their counters, including those that the switch itself added.
func (c *Conn) FlowStats(ctx context.Context) ([]openflow.FlowStats, error) {
	k, err := c.channel.exchange(ctx, "flow dump", openflow.FlowsRequest(openflow.PartFlowDesc))
	if err != nil {
		return nil, err
	}
	var all []openflow.FlowStats
	for _, part := range k.parts {
		for len(part) > 0 {
			var f openflow.FlowStats
			if f, part, err = openflow.DecodeFlowStats(part); err != nil {
				return nil, fmt.Errorf("flow %d of a dump: %w", len(all), err)
			}
			all = append(all, f)
		}
	}
	return all, nil
}
