//go:build real

package openflow

import (
	"encoding/hex"
	"flag"
	"os"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the golden files from what the real switch says") //nolint:gochecknoglobals // a test's flag

// CheckGolden compares flows of a real switch with the golden file. The caller has compared their text with that of ovs-ofctl.
func CheckGolden(t *testing.T, flows []*Flow) {
	t.Helper()
	flows = slices.SortedFunc(slices.Values(flows), func(a, b *Flow) int { return CompareKeys(a.Key(), b.Key()) })
	var content strings.Builder
	for _, f := range flows {
		content.WriteString(hex.EncodeToString(EncodeFlowDesc(f)) + "\t" + f.String() + "\n")
	}
	if *update {
		if err := os.WriteFile(goldenPath, []byte(content.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(goldenPath)
	if err != nil {
		t.Fatal(err)
	}
	if string(have) != content.String() {
		t.Error("the golden file is not what the switch says: run with -update")
	}
}
