//go:build lab

package flannel

import (
	"context"
	"flag"
	"regexp"
	"testing"

	soak "weft.dev/weft/test/soak/flannel"
)

//nolint:gochecknoglobals // flags of the test binary
var (
	rounds = flag.Int("lab.rounds", 5, "number of crowds of pods that are added and deleted")
	crowd  = flag.Int("lab.crowd", 200, "number of pods in a crowd")
)

// TestCrowds: deleted pods leave nothing behind, however many: no address, interface, rule, descriptor, record, file of host-local or of the
// plugin. The pods that stay reach each other, and pods of the original flanneld's node.
func TestCrowds(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*limit)
	defer cancel()
	done := 0
	err := soak.Run(ctx, soak.Options{
		Lab: "flancrowd", Bin: weftBin, Faults: regexp.MustCompile(`^$`), Rounds: *rounds, Crowd: *crowd, Say: t.Logf,
	}, func(row soak.Row) {
		t.Logf("%s: %d of %d packets lost, as before after %s", row.Name, row.Lost, row.Sent, row.Back)
		for _, err := range row.Wrong {
			t.Errorf("%s: %v", row.Name, err)
		}
		if row.Count > 1 {
			done++
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if done != *rounds {
		t.Errorf("%d rounds, want %d", done, *rounds)
	}
}
