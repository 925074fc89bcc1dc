package bridge

import (
	"context"
	"encoding/binary"
	"slices"
	"testing"
	"time"

	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/openflow/action"
)

func TestMonitorReportsBecomeDrift(t *testing.T) {
	mine, learned := &openflow.Flow{Table: 1, Priority: 2}, &openflow.Flow{Table: 24, IdleTimeout: 5}
	var b []byte
	b = openflow.EncodeFlowUpdate(b, openflow.FlowModified, mine)
	b = openflow.EncodeFlowUpdate(b, openflow.FlowAdded, learned)
	b = append(b, 0, 8, 0, byte(openflow.FlowOwn), 0, 0, 0, 9)
	updates := decode(b)
	if len(updates) != 3 || updates[2].XID != 9 {
		t.Fatalf("%+v", updates)
	}
	if event := drift(updates); len(event.Drift) != 1 || event.Drift[0] != mine.Key() || event.Unclear {
		t.Errorf("%+v", event)
	}
	updates = decode([]byte{0, 8, 0, byte(openflow.MonitorPaused), 0, 0, 0, 0, 0, 8, 0, byte(openflow.MonitorResumed), 0, 0, 0, 0})
	if len(updates) != 2 || !drift(updates).Unclear {
		t.Errorf("%+v: a pause leaves it unclear what changed", updates)
	}
}

// A message of a flow monitor of which a report cannot be decoded is not lost: its other reports count, and everything is read again.
func TestAReportThatCannotBeDecodedIsUnclear(t *testing.T) {
	foreign := &openflow.Flow{Table: 0, Priority: 60000}
	report := openflow.EncodeFlowUpdate(nil, openflow.FlowAdded, foreign)
	for name, garbage := range map[string][]byte{
		"event": {0, 8, 0, 77, 0, 0, 0, 0}, "length": {0, 9, 0, 0, 0, 0, 0, 0}, "short": {0, 8}, "match": append(slices.Clone(report[:24]), 0, 9, 0, 0, 0, 0, 0, 0),
	} {
		body := append(binary.BigEndian.AppendUint16(nil, openflow.PartFlowMonitor), 0, 0, 0, 0, 0, 0)
		e := NewEngine(Config{})
		e.onAsync(openflow.DecodeAsync(openflow.Message{Kind: openflow.MsgMultipartReply, Body: append(append(body, report...), garbage...)}))
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		event, err := e.Next(ctx)
		cancel()
		if err != nil || !event.Unclear || len(event.Drift) != 1 || event.Drift[0] != foreign.Key() {
			t.Errorf("%s: %+v, %v", name, event, err)
		}
	}
}

func TestAChangeIsPutInAnOrderWithoutHoles(t *testing.T) {
	flow := func(table uint8, actions ...action.Action) *openflow.Flow {
		return &openflow.Flow{Table: table, Actions: actions}
	}
	group, old := &openflow.Group{ID: 1, Type: openflow.GroupAll}, &openflow.Group{ID: 2, Type: openflow.GroupAll}
	last := flow(253)
	change := Change{Set: map[openflow.Key]openflow.Entry{}, Delete: map[openflow.Key]openflow.Entry{}}
	at := func(priority uint16) *openflow.Flow { return &openflow.Flow{Table: 100, Priority: priority} }
	for _, e := range []openflow.Entry{flow(0, action.GotoTable(20)), flow(20, action.GroupAction(1)), group, last, at(1), at(3)} {
		change.Set[e.Key()] = e
	}
	for _, e := range []openflow.Entry{flow(30, action.GroupAction(2)), flow(10), old, at(4), at(2)} {
		change.Delete[e.Key()] = e
	}
	mods, err := plan(change, func(k openflow.Key) bool { return k.Table == 253 })
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range mods {
		sign := "+"
		if m.Delete {
			sign = "-"
		}
		got = append(got, sign+m.Entry.Key().String())
	}
	want := []string{
		"+group_id=1", "+table=100,priority=3", "+table=100,priority=1", "+table=20,priority=0", "+table=0,priority=0",
		"-table=10,priority=0", "-table=30,priority=0", "-table=100,priority=2", "-table=100,priority=4", "-group_id=2", "+table=253,priority=0",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// decode returns the reports of a flow monitor that are the body of a message.
func decode(body []byte) []openflow.FlowUpdate {
	updates, _ := openflow.DecodeAsync(openflow.MultipartReply(0, openflow.PartFlowMonitor, 0, body)).([]openflow.FlowUpdate)
	return updates
}
