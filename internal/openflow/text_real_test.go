//go:build real

package openflow_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/openflow/action"
	"weft.dev/weft/internal/openflow/openflowtest"
	"weft.dev/weft/internal/openflow/ovstest"
	"weft.dev/weft/internal/openflow/oxm"
	"weft.dev/weft/internal/openflow/session"
)

func dial(t testing.TB, s *ovstest.Switch, bridge string) *session.Conn {
	t.Helper()
	c, err := session.Dial(t.Context(), s.Mgmt(bridge), session.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func texts[T interface{ String() string }](entries []T) []string {
	var lines []string
	for _, e := range entries {
		lines = append(lines, e.String())
	}
	slices.Sort(lines)
	return lines
}

func TestTextOfDumpedFlowsIsThatOfOvsOfctl(t *testing.T) {
	s := ovstest.Start(t)
	br, copyBr := s.Name("a"), s.Name("b")
	s.AddBridge(br)
	s.AddBridge(copyBr)
	corpus, err := filepath.Abs("testdata/flows.txt")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(corpus); err != nil {
		t.Fatal(err)
	}
	s.OFCtl("add-flows", s.Mgmt(br), corpus)
	want := s.DumpFlows(br)

	conn := dial(t, s, br)
	flows, err := conn.Flows(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(flows) != len(want) || len(want) < 90 {
		t.Fatalf("%d flows dumped, ovs-ofctl says %d", len(flows), len(want))
	}
	known := func(line string) bool { return !strings.Contains(line, "unknown(") && !strings.Contains(line, "oxm:") }
	var opaque int
	got := texts(flows)
	for i := range flows {
		if !known(flows[i].String()) {
			opaque++
		}
	}
	if diff := cmp.Diff(filter(want, func(l string) bool { return !unknownToUs(l) }), filter(got, known)); diff != "" {
		t.Errorf("text (-ovs-ofctl +ours):\n%s", diff)
	}
	if opaque != 6 {
		t.Errorf("%d flows with what this package does not know, want 6", opaque)
	}

	openflow.CheckGolden(t, understood(flows, known))

	// The flows that were read are written to a second bridge. It prints the same, including opaque parts.
	mods := make([]openflow.Mod, 0, len(flows))
	for _, f := range flows {
		mods = append(mods, openflow.Mod{Entry: f})
	}
	second := dial(t, s, copyBr)
	if err := second.Bundle(t.Context(), mods); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, s.DumpFlows(copyBr)); diff != "" {
		t.Errorf("the copy's text (-original +copy):\n%s", diff)
	}
	again, err := second.Flows(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	byKey := map[openflow.Key]*openflow.Flow{}
	for _, f := range again {
		byKey[f.Key()] = f
	}
	for _, f := range flows {
		if o := byKey[f.Key()]; o == nil || !f.Equal(o) {
			t.Errorf("%s\nread back from the copy as\n%v", f, o)
		}
	}
}

// unknownToUs reports lines of the corpus that test a feature which this package does not support.
func unknownToUs(line string) bool {
	for _, part := range []string{"push:", "fin_timeout", "multipath", "tun_gbp_id", "output(port", "dec_ttl("} {
		if strings.Contains(line, part) {
			return true
		}
	}
	return false
}

func understood(flows []*openflow.Flow, keep func(string) bool) []*openflow.Flow {
	return slices.DeleteFunc(slices.Clone(flows), func(f *openflow.Flow) bool { return !keep(f.String()) })
}

func filter(lines []string, keep func(string) bool) []string {
	var kept []string
	for _, l := range lines {
		if keep(l) {
			kept = append(kept, l)
		}
	}
	return kept
}

func TestTextOfTheSampleIsThatOfOvsOfctl(t *testing.T) {
	s := ovstest.Start(t)
	br := s.Name("br")
	s.AddBridge(br)
	var flows []*openflow.Flow
	var mods []openflow.Mod
	group := &openflow.Group{ID: 8, Type: openflow.GroupSelect, Selection: &openflow.Selection{Method: "hash", Param: 3, Fields: []oxm.Field{oxm.FieldIPv4Src, oxm.FieldTCPDst}}, Buckets: []openflow.Bucket{
		{ID: 5, Weight: 10, Actions: action.Actions{action.Output(1)}}, {ID: 9, Weight: 1, WatchPort: openflow.PortLocal},
	}}
	failover := &openflow.Group{ID: 9, Type: openflow.GroupFastFailover, Buckets: []openflow.Bucket{{WatchGroup: 8, Actions: action.Actions{action.GroupAction(8)}}}}
	want := []*openflow.Group{group, failover}
	mods = append(mods, openflow.Mod{Entry: group}, openflow.Mod{Entry: failover})
	for _, e := range openflowtest.Sample() {
		switch e := e.(type) {
		case *openflow.Flow:
			flows = append(flows, e)
			mods = append(mods, openflow.Mod{Entry: e})
		case *openflow.Group:
			want = append(want, e)
			mods = append([]openflow.Mod{{Entry: e}}, mods...)
		}
	}
	conn := dial(t, s, br)
	if err := conn.Bundle(t.Context(), mods); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(s.DumpFlows(br), texts(flows)); diff != "" {
		t.Errorf("flows (-ovs-ofctl +ours):\n%s", diff)
	}
	var printed []string
	for line := range strings.Lines(s.OFCtl("--no-names", "dump-groups", s.Mgmt(br))) {
		if strings.Contains(line, "group_id=") {
			printed = append(printed, strings.TrimSpace(line))
		}
	}
	if diff := cmp.Diff(texts(want), sorted(printed)); diff != "" {
		t.Errorf("groups (-ours +ovs-ofctl):\n%s", diff)
	}
	groups, err := conn.Groups(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(texts(want), texts(groups)); diff != "" {
		t.Errorf("groups read back (-written +read):\n%s", diff)
	}
}

func sorted(lines []string) []string {
	return texts(asStringers(lines))
}

type text string

func (t text) String() string { return string(t) }

func asStringers(lines []string) []text {
	var all []text
	for _, l := range lines {
		all = append(all, text(l))
	}
	return all
}
