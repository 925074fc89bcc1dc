//go:build lab

package e2e

import (
	"testing"

	"weft.dev/weft/lab"
	"weft.dev/weft/test/probe"
)

// watchFlows watches a node's flows until the test ends.
func watchFlows(t *testing.T, n lab.Node) *probe.FlowWatch {
	t.Helper()
	w, err := probe.WatchFlows(t.Context(), n)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Close() })
	return w
}
