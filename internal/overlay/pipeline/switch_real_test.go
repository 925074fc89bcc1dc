//go:build real

package pipeline_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/openflow/bridge"
	"weft.dev/weft/internal/openflow/ofproto"
	"weft.dev/weft/internal/openflow/ovstest"
	"weft.dev/weft/internal/overlay/pipeline"
	"weft.dev/weft/internal/overlay/pipeline/layout"
	"weft.dev/weft/internal/reconcile"
)

// realSwitch is a bridge with the sample's ports and flows.
type realSwitch struct {
	*ovstest.Switch
	bridge string
}

func start(t *testing.T, c *pipeline.Config) realSwitch {
	t.Helper()
	return startWith(t, allFlows(c), 2)
}

// startWith starts a bridge with the ports of this many pods, and with flows.
func startWith(t *testing.T, flows []*openflow.Flow, pods int) realSwitch {
	t.Helper()
	s := realSwitch{Switch: ovstest.Start(t)}
	s.bridge = s.Name("br")
	s.AddBridge(s.bridge)
	s.VSCtl("add-port", s.bridge, s.Name("vx"), "--", "set", "interface", s.Name("vx"), "type=vxlan", "ofport_request=1",
		"options:remote_ip=flow", "options:key=flow", "options:dst_port=4789")
	for i, suffix := range append([]string{"t"}, strings.Split("abcdefghij"[:pods], "")...) {
		s.VSCtl("add-port", s.bridge, s.Name(suffix), "--", "set", "interface", s.Name(suffix), "type=internal",
			fmt.Sprintf("ofport_request=%d", int(layout.PortTun)+i))
	}
	s.program(t, flows)
	return s
}

// program commits flows, and checks that nothing differs afterwards: a restart commits nothing.
func (s realSwitch) program(t *testing.T, flows []*openflow.Flow) {
	t.Helper()
	engine := bridge.NewEngine(bridge.Config{Address: s.Mgmt(s.bridge), Last: pipeline.IsNote})
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	ended := make(chan error, 1)
	go func() { ended <- engine.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("the engine ended with %v", err)
		}
	}()
	want := map[openflow.Key]openflow.Entry{}
	for _, f := range flows {
		want[f.Key()] = f
	}
	key, note := pipeline.Note(reconcile.Hash{1, 2, 3, 4})
	want[key] = note
	have := s.read(ctx, t, engine)
	if err := engine.Commit(ctx, reconcile.Diff(want, have)); err != nil {
		t.Fatal(err)
	}
	if change := reconcile.Diff(want, s.read(ctx, t, engine)); !change.Empty() {
		t.Errorf("once committed, it differs: %v", change)
	}
}

func (s realSwitch) read(ctx context.Context, t *testing.T, engine *bridge.Engine) map[openflow.Key]openflow.Entry {
	t.Helper()
	for {
		have, err := engine.Read(ctx)
		if err == nil {
			return have
		}
		if !errors.Is(err, reconcile.ErrUnavailable) || ctx.Err() != nil {
			t.Fatal(err)
		}
		if _, err := engine.Next(ctx); err != nil {
			t.Fatal(err)
		}
	}
}

// outcome is what the switch would do with a packet.
type outcome struct {
	tables  string   // "0 20 21 ..."
	outputs []string // "output:3"
	text    string
}

var (
	visited = regexp.MustCompile(`(?m)^ *(\d+)\. `)
	outputs = regexp.MustCompile(`(?m)^ +output:(\S+)`)
)

func (s realSwitch) trace(t *testing.T, flow string, options ...string) outcome {
	t.Helper()
	text, err := ofproto.Trace(t.Context(), s.CtlSock, s.bridge, flow, options...)
	if err != nil {
		t.Fatal(err)
	}
	o := outcome{text: text}
	var path []string
	for _, m := range visited.FindAllStringSubmatch(text, -1) {
		path = append(path, m[1])
	}
	o.tables = strings.Join(path, " ")
	for _, m := range outputs.FindAllStringSubmatch(text, -1) {
		o.outputs = append(o.outputs, m[1])
	}
	return o
}

var (
	port2       = regexp.MustCompile(`set_field:0x(\d+)->reg2`)
	notByInPort = "skipping output to input port"
)

// leaving returns the numbers of the ports that the packet leaves by.
func (o outcome) leaving() []string {
	if strings.Contains(o.text, notByInPort) {
		return nil
	}
	var ports []string
	for _, port := range o.outputs {
		if m := port2.FindStringSubmatch(o.text); port == "NXM_NX_REG2[]" && m != nil {
			port = m[1]
		}
		ports = append(ports, port)
	}
	return ports
}
