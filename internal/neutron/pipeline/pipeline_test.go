package pipeline_test

import (
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weft.dev/weft/internal/neutron/pipeline"
)

var update = flag.Bool("update", false, "write the golden files") //nolint:gochecknoglobals // a flag of the test

func pod(number uint32) *pipeline.Pod {
	return &pipeline.Pod{
		Owner: "attachment/c1/eth0", OFPort: 2*number + 11, Patch: 2*number + 10, Zone: uint16(57344 + number), //nolint:gosec // small
		MAC: net.HardwareAddr{0x0a, 0x58, 10, 244, 0, 5}, Addresses: []netip.Addr{netip.MustParseAddr("10.244.0.5"), netip.MustParseAddr("fd00::5")},
	}
}

func TestGolden(t *testing.T) {
	for name, rules := range map[string][]pipeline.Rule{"static": pipeline.Static(), "pod": pipeline.PodRules(pod(3))} {
		t.Run(name, func(t *testing.T) {
			var text strings.Builder
			for _, r := range rules {
				if err := r.Flow.Match.Validate(); err != nil {
					t.Errorf("%s: %v", r.Flow, err)
				}
				fmt.Fprintf(&text, "# %s\n%s\n", r.Purpose, r.Flow)
			}
			path := filepath.Join("testdata", name+".golden")
			if *update {
				if err := os.WriteFile(path, []byte(text.String()), 0o644); err != nil { //nolint:gosec // a golden file
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), text.String()); diff != "" {
				t.Errorf("flows differ (run with -update after a look):\n%s", diff)
			}
			if len(pipeline.Fragment(rules)) != len(rules) {
				t.Error("two flows have the same table, priority and match")
			}
		})
	}
}

// Flows of two pods never stand under one key, also with equal addresses, except those by which the host reaches the address.
func TestPodsShareNoFlow(t *testing.T) {
	one, two := pod(3), pod(4)
	shared := 0
	for key := range pipeline.Fragment(pipeline.PodRules(one)) {
		if _, both := pipeline.Fragment(pipeline.PodRules(two))[key]; both {
			shared++
			if key.Table != pipeline.TableFromHost {
				t.Errorf("shared: %s", key)
			}
		}
	}
	if shared != 1 {
		t.Errorf("%d flows are shared, want the one from the host", shared)
	}
}
