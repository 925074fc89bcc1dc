//go:build real

package daemon_test

import (
	"strings"
	"testing"

	"weft.dev/weft/internal/flannel/flanneltest"
)

// TestOffloadStays: without the fault, the offload stays on.
func TestOffloadStays(t *testing.T) {
	weft, _ := programs(t)
	u := flanneltest.NewUnderlay(t)
	etcd := u.Etcd()
	etcd.Put(configKey, `{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}`)
	n1, n2 := u.Node(), u.Node()
	startWeft(n1, weft, etcd)
	n1.Subnet("FLANNEL_SUBNET")
	ours := startWeft(n2, weft, etcd)
	logs(t, ours, "checksum offload of the tunnel is sound")
	if out, err := n2.Run("ethtool", "-k", "flannel.1"); err != nil || !strings.Contains(out, "tx-checksum-ip-generic: on") {
		t.Errorf("%v %s", err, out)
	}
}
