//go:build real

package ofproto_test

import (
	"errors"
	"strings"
	"testing"

	"weft.dev/weft/internal/openflow/ofproto"
	"weft.dev/weft/internal/openflow/ovstest"
)

func TestTrace(t *testing.T) {
	s := ovstest.Start(t)
	br := s.Name("br")
	s.AddBridge(br)
	s.OFCtl("add-flow", s.Mgmt(br), "table=0,in_port=LOCAL,tcp,actions=set_field:7->reg1,resubmit(,5)")
	text, err := ofproto.Trace(t.Context(), s.CtlSock, br, "in_port=LOCAL,tcp,nw_src=10.0.0.1,tp_dst=80")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"0. tcp,in_port=LOCAL", "set_field:0x7->reg1", "5. No match", "Datapath actions: drop"} {
		if !strings.Contains(text, want) {
			t.Errorf("the trace lacks %q:\n%s", want, text)
		}
	}
	if _, err := ofproto.Trace(t.Context(), s.CtlSock, "nosuchbridge", "tcp"); !errors.Is(err, ofproto.ErrCommand) {
		t.Errorf("tracing on a bridge that is not there: %v", err)
	}
}
