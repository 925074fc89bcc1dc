//go:build real

package bridge_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/openflow/action"
	"weft.dev/weft/internal/openflow/bridge"
	"weft.dev/weft/internal/openflow/ovstest"
	"weft.dev/weft/internal/openflow/oxm"
	"weft.dev/weft/internal/openflow/session"
	"weft.dev/weft/internal/testwait"
)

func TestTheSwitchAnswersEveryRequest(t *testing.T) {
	s := ovstest.Start(t)
	br := s.Name("br")
	s.AddBridge(br)
	events := make(chan any, 100)
	conn, err := session.Dial(t.Context(), s.Mgmt(br), session.Options{OnAsync: func(e any) { events <- e }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	ctx := t.Context()
	if f, err := conn.Features(ctx); err != nil || f.Tables != 254 {
		t.Errorf("features %+v, %v", f, err)
	}
	if d, err := conn.Describe(ctx); err != nil || d.Hardware != "Open vSwitch" {
		t.Errorf("description %+v, %v", d, err)
	}
	if ports, err := conn.Ports(ctx); err != nil || len(ports) != 1 || ports[0].Name != br || ports[0].Number != openflow.PortLocal {
		t.Errorf("ports %+v, %v", ports, err)
	}
	if err := conn.Echo(ctx); err != nil {
		t.Error(err)
	}
	if err := conn.Bundle(ctx, []openflow.Mod{{Entry: &openflow.Flow{Table: 0, Priority: 1, Actions: action.Actions{
		action.SetField(oxm.Reg(3, 0x42)), action.Controller(action.ControllerAction{Reason: action.ReasonAction}),
	}}}}); err != nil {
		t.Fatal(err)
	}
	if n, err := conn.Aggregate(ctx); err != nil || n.Flows != 1 {
		t.Errorf("totals %+v, %v", n, err)
	}
	if err := conn.SetMissSendLen(ctx, 128); err != nil {
		t.Fatal(err)
	}
	packet := append(bytes.Repeat([]byte{0xff}, 6), 2, 0, 0, 0, 0, 1, 0x88, 0xb5, 1, 2, 3, 4)
	if err := conn.PacketOut(ctx, openflow.PortLocal, action.Actions{action.Output(openflow.PortTable)}, packet); err != nil {
		t.Fatal(err)
	}
	in := await[*openflow.PacketIn](t, events)
	if !bytes.HasPrefix(in.Packet, packet) || !in.Metadata.Has(oxm.FieldReg(3)) {
		t.Errorf("packet-in %+v of %s", in, in.Metadata)
	}
	if all, err := conn.FlowStats(ctx); err != nil || len(all) != 1 || all[0].Flow.Priority != 1 || all[0].Packets != 1 || all[0].Bytes != uint64(len(packet)) {
		t.Errorf("flows with counters %+v, %v", all, err)
	}
	s.VSCtl("--no-wait", "add-port", br, s.Name("p"), "--", "set", "interface", s.Name("p"), "type=internal", "ofport_request=7")
	if p := await[*openflow.PortStatus](t, events); p.Port.Number != 7 || p.Reason != openflow.PortAdded {
		t.Errorf("port status %+v", p)
	}
}

func await[T any](t *testing.T, events <-chan any) T {
	t.Helper()
	deadline := time.After(30 * time.Second)
	for {
		select {
		case e := <-events:
			if want, ok := e.(T); ok {
				return want
			}
		case <-deadline:
			t.Fatalf("no %T", *new(T))
		}
	}
}

func TestConnectionsAreFlushed(t *testing.T) {
	s := ovstest.Start(t)
	br := s.Name("br")
	s.AddBridge(br)
	conn := dial(t, s, br)
	ctx := t.Context()
	if err := conn.Bundle(ctx, []openflow.Mod{{Entry: &openflow.Flow{Match: oxm.NewMatch(oxm.EthType(oxm.EthTypeIPv4)), Actions: action.Actions{
		action.CT(action.CTAction{Commit: true, Zone: 77}),
	}}}}); err != nil {
		t.Fatal(err)
	}
	// Ethernet, IPv4 10.0.0.1 to 10.0.0.2, UDP 1000 to the port in the last argument.
	open := func(port byte) {
		p, err := hex.DecodeString("020000000002" + "020000000001" + "0800" + "4500001c000040004011" + "26cf" + "0a0000010a000002" + "03e8" + "00")
		if err != nil {
			t.Fatal(err)
		}
		p = append(p, port, 0, 8, 0, 0)
		if err := conn.PacketOut(ctx, openflow.PortLocal, action.Actions{action.Output(openflow.PortTable)}, p); err != nil {
			t.Fatal(err)
		}
	}
	open(53)
	open(54)
	waitTracked(t, s, 2)
	src := netip.MustParseAddr("10.0.0.1")
	if err := conn.FlushCT(ctx, openflow.CTFlush{Zone: new(uint16(77)), Proto: oxm.ProtoUDP, Orig: openflow.CTTuple{Src: src, DstPort: 53}}); err != nil {
		t.Fatal(err)
	}
	left := waitTracked(t, s, 1)
	if !strings.Contains(left, "dport=54") {
		t.Errorf("left: %s", left)
	}
	if err := conn.FlushCT(ctx, openflow.CTFlush{Zone: new(uint16(77))}); err != nil {
		t.Fatal(err)
	}
	waitTracked(t, s, 0)
}

func waitTracked(t *testing.T, s *ovstest.Switch, n int) (out string) {
	t.Helper()
	testwait.Within(t, 30*time.Second, fmt.Sprintf("%d connections in the zone", n), func() error {
		if out = s.AppCtl("dpctl/dump-conntrack", "netdev@ovs-netdev"); strings.Count(out, "zone=77") != n {
			return errors.New(out)
		}
		return nil
	})
	return out
}

func TestLearnedFlowsBelongToTheSwitch(t *testing.T) {
	s := ovstest.Start(t)
	br := s.Name("br")
	s.AddBridge(br)
	engine := runEngine(t, s.Mgmt(br))
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	learner := &openflow.Flow{Actions: action.Actions{action.Learn(action.LearnSpec{Table: 24, Priority: 5, IdleTimeout: 60, Fields: []action.LearnField{
		action.LearnMatch(oxm.Whole(oxm.FieldEthSrc), oxm.Whole(oxm.FieldEthSrc)),
	}})}}
	marker := &openflow.Flow{Table: 9, Priority: 9}
	if err := engine.Commit(ctx, bridge.Change{Set: map[openflow.Key]openflow.Entry{learner.Key(): learner}}); err != nil {
		t.Fatal(err)
	}
	conn := dial(t, s, br)
	mac, _ := net.ParseMAC("02:00:00:00:00:01")
	packet := append(append(bytes.Repeat([]byte{0xff}, 6), mac...), 0x88, 0xb5, 0, 0)
	if err := conn.PacketOut(ctx, openflow.PortLocal, action.Actions{action.Output(openflow.PortTable)}, packet); err != nil {
		t.Fatal(err)
	}
	for {
		flows, err := conn.Flows(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if len(flows) == 2 {
			break
		}
	}
	if state, err := engine.Read(ctx); err != nil || len(state) != 1 {
		t.Errorf("the engine reads %s, %v", openflow.Text(state), err)
	}
	if err := conn.Bundle(ctx, []openflow.Mod{{Entry: marker}}); err != nil {
		t.Fatal(err)
	}
	for {
		event, err := engine.Next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if len(event.Drift) == 0 {
			continue
		}
		if len(event.Drift) != 1 || event.Drift[0] != marker.Key() {
			t.Errorf("drift %v, want only what another connection did", event.Drift)
		}
		break
	}
}

// The switch must undo a bundle that fails after it has made groups and flows, without harm (CVE-2018-17205).
func TestTheSwitchSurvivesABundleThatFails(t *testing.T) {
	s := ovstest.Start(t)
	br := s.Name("br")
	s.AddBridge(br)
	conn := dial(t, s, br)
	pid := s.PID("ovs-vswitchd")
	group := &openflow.Group{ID: 5, Type: openflow.GroupSelect, Buckets: []openflow.Bucket{{Weight: 1, Actions: action.Actions{action.Output(1)}}}}
	kept := &openflow.Flow{Table: 2, Priority: 2, Actions: action.Actions{action.GroupAction(5)}}
	if err := conn.Bundle(t.Context(), []openflow.Mod{{Entry: group}, {Entry: kept}}); err != nil {
		t.Fatal(err)
	}
	before := s.DumpFlows(br)
	changed := *group
	changed.Buckets = append(changed.Buckets, openflow.Bucket{Weight: 7})
	bad := &openflow.Flow{Table: 9, Actions: action.Actions{action.GroupAction(99)}}
	for range 20 {
		err := conn.Bundle(t.Context(), []openflow.Mod{
			{Entry: &openflow.Group{ID: 6, Type: openflow.GroupAll}}, {Entry: &changed}, {Entry: kept, Delete: true}, {Entry: group, Delete: true}, {Entry: bad},
		})
		if err == nil {
			t.Fatal("a flow to a group that is not there was accepted")
		}
	}
	if s.PID("ovs-vswitchd") != pid || !strings.Contains(s.OFCtl("dump-groups", s.Mgmt(br)), "group_id=5") {
		t.Error("the switch was harmed")
	}
	if diff := cmp.Diff(before, s.DumpFlows(br)); diff != "" {
		t.Errorf("flows (-before +after):\n%s", diff)
	}
}

// A waiting caller is notified of its port by name and number, and not of other ports.
func TestAddedPortsAreReported(t *testing.T) {
	s := ovstest.Start(t)
	br, name, other := s.Name("br"), s.Name("p"), s.Name("q")
	s.AddBridge(br)
	e := bridge.NewEngine(bridge.Config{Address: s.Mgmt(br)})
	go func() { _ = e.Run(t.Context()) }()
	if event, err := e.Next(t.Context()); err != nil || !event.Connected {
		t.Fatalf("%+v, %v", event, err)
	}
	add := func(name, number string) {
		s.VSCtl("add-port", br, name, "--", "set", "interface", name, "type=internal", "ofport_request="+number)
	}
	added, stop := e.Added(name, 7)
	defer stop()
	wrong, stopWrong := e.Added(other, 8)
	defer stopWrong()
	add(other, "9") // not the awaited number
	add(name, "7")
	select {
	case <-added:
	case <-t.Context().Done():
	case <-time.After(time.Minute):
		t.Fatal("the port was not reported")
	}
	select {
	case <-wrong:
		t.Error("a port with another number was reported")
	default:
	}
}

// Group changes by others are reported, even if no flow changes; the engine's own changes are not.
func TestChangedGroupsAreReported(t *testing.T) {
	s := ovstest.Start(t)
	br := s.Name("br")
	s.AddBridge(br)
	e := bridge.NewEngine(bridge.Config{Address: s.Mgmt(br)})
	go func() { _ = e.Run(t.Context()) }()
	if event, err := e.Next(t.Context()); err != nil || !event.Connected {
		t.Fatalf("%+v, %v", event, err)
	}
	own := &openflow.Group{ID: 5, Type: openflow.GroupAll}
	if err := e.Commit(t.Context(), bridge.Change{Set: map[openflow.Key]openflow.Entry{own.Key(): own}}); err != nil {
		t.Fatal(err)
	}
	for _, command := range [][]string{
		{"add-group", s.Mgmt(br), "group_id=7,type=all,bucket=actions=drop"},
		{"mod-group", s.Mgmt(br), "group_id=5,type=all,bucket=actions=drop"},
		{"del-groups", s.Mgmt(br), "group_id=7"},
		{"del-groups", s.Mgmt(br)},
	} {
		s.OFCtl(command...)
		event, err := e.Next(t.Context())
		if err != nil || !event.Unclear || len(event.Drift) > 0 {
			t.Errorf("after %v: %+v, %v; want it unclear", command, event, err)
		}
	}
	// The next event is the last change by others: the engine's own changes before it were not reported.
	if err := e.Commit(t.Context(), bridge.Change{Set: map[openflow.Key]openflow.Entry{own.Key(): own}}); err != nil {
		t.Fatal(err)
	}
	marker := &openflow.Flow{Table: 3, Priority: 3}
	s.OFCtl("add-flow", s.Mgmt(br), "table=3,priority=3,actions=drop")
	event, err := e.Next(t.Context())
	if err != nil || event.Unclear || len(event.Drift) != 1 || event.Drift[0] != marker.Key() {
		t.Errorf("%+v, %v; want only the foreign flow", event, err)
	}
}

func dial(t testing.TB, s *ovstest.Switch, bridge string) *session.Conn {
	t.Helper()
	c, err := session.Dial(t.Context(), s.Mgmt(bridge), session.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}
