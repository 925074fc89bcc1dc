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
	"weft.dev/weft/internal/openflow/ovstest"
)

func dial(t testing.TB, s *ovstest.Switch, bridge string) *openflow.Conn {
	t.Helper()
	c, err := openflow.Dial(t.Context(), s.Mgmt(bridge), openflow.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// dumpText returns what ovs-ofctl prints, one line per flow, sorted.
func dumpText(s *ovstest.Switch, bridge string) []string {
	out := s.OFCtl("--no-stats", "--no-names", "dump-flows", s.Mgmt(bridge))
	var lines []string
	for line := range strings.Lines(out) {
		if line = strings.TrimSpace(line); strings.Contains(line, "actions=") {
			lines = append(lines, line)
		}
	}
	slices.Sort(lines)
	return lines
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
	want := dumpText(s, br)

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
	if diff := cmp.Diff(want, dumpText(s, copyBr)); diff != "" {
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
