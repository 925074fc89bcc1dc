package cookies_test

import (
	"testing"

	"weft.dev/weft/internal/overlay/pipeline/cookies"
	"weft.dev/weft/internal/reconcile"
)

// TestKind: a flow's cookie identifies the kind of its owner, and a cookie that is not Weft's none.
func TestKind(t *testing.T) {
	for owner, kind := range map[reconcile.Owner]string{
		"cluster": "cluster", "attachment/a/eth0": "attachment", "hostsubnet/1": "hostsubnet", "state": "state",
		"service/a/b": "service", "nodes": "nodes", "targets": "targets", "affinity/a": "affinity", "something/else": "other", "egressfirewall/a": "egressfirewall",
		"policyrule/1": "policyrule", "egressip/42": "egressip", "policyterm/ingress/from/10.0.0.1": "policyterm",
		"multicast/42": "multicast", "multicast/nodes": "multicast",
	} {
		if got := cookies.Kind(cookies.Of(owner)); got != kind {
			t.Errorf("cookie of %s: kind %q, want %q", owner, got, kind)
		}
	}
	for _, cookie := range []uint64{0, ^uint64(0), 1} {
		if got := cookies.Kind(cookie); got != "" {
			t.Errorf("cookie %#x: kind %q, want none", cookie, got)
		}
	}
}
