//go:build real

package openflow

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"weft.dev/weft/internal/openflow/action"
	"weft.dev/weft/internal/openflow/codectest"
	"weft.dev/weft/internal/openflow/oxm"
)

const oracleSamples = 2000

// ofctl runs ovs-ofctl and returns its output, including stderr, where it reports text that it cannot parse.
func ofctl(t *testing.T, stdin string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "ovs-ofctl", append([]string{"-vconsole:off"}, args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		t.Fatalf("ovs-ofctl %q: %v\n%.2000s", args, err, &out)
	}
	return out.String()
}

// TestRandomActionsReadTheSameInOvsOfctl encodes random actions and lets `ovs-ofctl parse-actions` decode them. Its text must be the same
// as ours. It also encodes the actions and prints any difference from our bytes; there must be none.
func TestRandomActionsReadTheSameInOvsOfctl(t *testing.T) {
	generator := rapid.Custom(func(t *rapid.T) action.Action { return codectest.Action(t, 1) })
	agreed, refused := 0, map[string]int{}
	var input strings.Builder
	var want []string
	for seed := range oracleSamples {
		a := generator.Example(seed)
		input.WriteString(hex.EncodeToString(action.Actions{a}.AppendWire(nil)) + "\n")
		want = append(want, "actions="+a.String())
	}
	answers := strings.Split(strings.TrimSuffix(ofctl(t, input.String(), "parse-actions", "OpenFlow15"), "\n\n"), "\n\n")
	if len(answers) != len(want) {
		t.Fatalf("%d answers to %d questions", len(answers), len(want))
	}
	for i, got := range answers {
		switch {
		case strings.HasPrefix(got, "bad "):
			refused[got]++
		case got != want[i]:
			t.Errorf("ovs-ofctl reads\n%s\nwant\n%s", got, want[i])
		default:
			agreed++
		}
		if t.Failed() && i > 200 {
			break
		}
	}
	t.Logf("%d agreed, refused %v", agreed, refused)
	if agreed < oracleSamples/2 {
		t.Errorf("ovs-ofctl took only %d of %d", agreed, oracleSamples)
	}
}

// TestRandomMatchesReadTheSameInOvsOfctl does the same for matches, in flow-mods that `ovs-ofctl ofp-parse` decodes.
func TestRandomMatchesReadTheSameInOvsOfctl(t *testing.T) {
	generator := rapid.Custom(codectest.Match)
	var stream []byte
	var want []string
	for seed := range oracleSamples {
		var kept []oxm.MatchField
		for _, f := range generator.Example(seed).Fields() {
			// Validate does not check what conntrack's original tuple requires of ct_state.
			if f.Field() < oxm.FieldCTNwProto || f.Field() > oxm.FieldCTTpDst {
				kept = append(kept, f)
			}
		}
		f := &Flow{Table: 1, Priority: 5, Match: oxm.NewMatch(kept...)}
		m := flowMod(flowAdd, f)
		m.XID = uint32(seed)
		stream = m.AppendWire(stream)
		text := f.Match.String()
		if text != "" {
			text = "," + text
		}
		want = append(want, "ADD table:1 priority=5"+text+" actions=drop")
	}
	file := filepath.Join(t.TempDir(), "messages")
	if err := os.WriteFile(file, stream, 0o600); err != nil {
		t.Fatal(err)
	}
	agreed, refused := 0, map[string]int{}
	for line := range strings.Lines(ofctl(t, "", "ofp-parse", file)) {
		head, got, ok := strings.Cut(strings.TrimSpace(line), "): ")
		if !ok || !strings.HasPrefix(head, "OFPT_FLOW_MOD") {
			continue
		}
		var xid int
		if _, err := fmt.Sscanf(head[strings.Index(head, "(xid=")+5:], "0x%x", &xid); err != nil {
			t.Fatal(err)
		}
		switch {
		case strings.HasPrefix(got, "***"):
			refused[got]++
		case got != want[xid]:
			t.Fatalf("ovs-ofctl reads\n%s\nwant\n%s", got, want[xid])
		default:
			agreed++
		}
	}
	t.Logf("%d agreed, refused %v", agreed, refused)
	if agreed < oracleSamples/2 {
		t.Errorf("ovs-ofctl took only %d of %d", agreed, oracleSamples)
	}
}

// TestOtherMessagesReadWell lets `ovs-ofctl ofp-print` decode the messages that no flow table shows.
func TestOtherMessagesReadWell(t *testing.T) {
	zone := uint16(5)
	for name, test := range map[string]struct {
		m    Message
		want string
	}{
		"hello":        {Hello(), "version bitmap: 0x06"},
		"bundle":       {BundleControl(7, BundleCommit), "bundle_id=0x7 type=COMMIT_REQUEST flags=atomic ordered"},
		"flow monitor": {MonitorRequest(1), "id=1 flags=add,delete,modify"},
		"ports":        {PortsRequest(), "OFPST_PORT_DESC request (OF1.5) (xid=0x0): port=ANY"},
		"groups":       {GroupsRequest(), "group_id=ALL"},
		"flush":        {niciraMessage(nxtCTFlush, CTFlush{Zone: &zone, Proto: 6, Orig: CTTuple{DstPort: 53}}.body()), "zone=5 'ct_ipv6_src=::,ct_ipv6_dst=::,ct_tp_src=0,ct_tp_dst=53,ct_nw_proto=6'"},
		"group delete": {groupMod(groupDelete, &Group{ID: 9}), "DEL group_id=9"},
	} {
		got := ofctl(t, "", "ofp-print", hex.EncodeToString(test.m.AppendWire(nil)))
		if !strings.Contains(got, test.want) {
			t.Errorf("%s: ovs-ofctl reads\n%swant %q in it", name, got, test.want)
		}
	}
}
