//go:build real

package openflow

import (
	"encoding/hex"
	"slices"
	"strings"
	"testing"

	"weft.dev/weft/internal/goldentest"
)

// CheckGolden compares flows of a real switch with the golden file. The caller has compared their text with that of ovs-ofctl.
func CheckGolden(t *testing.T, flows []*Flow) {
	t.Helper()
	flows = slices.SortedFunc(slices.Values(flows), func(a, b *Flow) int { return CompareKeys(a.Key(), b.Key()) })
	var content strings.Builder
	for _, f := range flows {
		content.WriteString(hex.EncodeToString(EncodeFlowDesc(f)) + "\t" + f.String() + "\n")
	}
	goldentest.Compare(t, goldenPath, content.String())
}
