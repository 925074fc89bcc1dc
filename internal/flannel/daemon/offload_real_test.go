//go:build real

package daemon_test

import (
	"strings"
	"testing"

	"weft.dev/weft/internal/flannel/flanneltest"
)

// TestOffload: if checksums inside the tunnel arrive incomplete, TCP between nodes works once the daemon has turned the offload off.
// flanneld only documents this fix.
func TestOffload(t *testing.T) {
	weft, _ := programs(t)
	u := flanneltest.NewUnderlay(t)
	etcd := u.Etcd()
	etcd.Put(configKey, `{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}`)
	n1, n2 := u.Node(), u.Node()
	n2.Unfinished()
	startWeft(n1, weft, etcd)
	n1.Subnet("FLANNEL_SUBNET")
	ours := startWeft(n2, weft, etcd)
	to := strings.Replace(n1.Subnet("FLANNEL_SUBNET"), ".1/24", ".0", 1)
	n2.Subnet("FLANNEL_SUBNET")
	flanneltest.Eventually(t, "TCP through the tunnel", func() error { return flanneltest.Connects(n2.Space, n1.Space, to) })
	logs(t, ours, "checksum offload of the tunnel is faulty on this node and was turned off")
}

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
