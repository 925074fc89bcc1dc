//go:build real

package daemon_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"weft.dev/weft/internal/flannel/flanneltest"
)

// TestCapabilities: the daemon works in a container of flannel's manifest: with NET_ADMIN and NET_RAW only, with read-only settings of the
// node, and without iptables: of all programs it finds only nft. flanneld ends without iptables, also if it uses nftables.
func TestCapabilities(t *testing.T) {
	weft, flanneld := programs(t)
	u := flanneltest.NewUnderlay(t)
	etcd := u.Etcd()
	etcd.Put(configKey, `{"Network":"10.5.0.0/16","IPv6Network":"fd00:5::/48","EnableIPv6":true,"Backend":{"Type":"vxlan"}}`)
	n1, n2 := u.Node(), u.Node()
	const contained = `mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys && exec setpriv --bounding-set=-all,+net_admin,+net_raw env PATH="$0" "$@"`
	nft, err := exec.LookPath("nft")
	if err != nil {
		t.Fatal(err)
	}
	found := t.TempDir()
	if err := os.Symlink(nft, filepath.Join(found, "nft")); err != nil {
		t.Fatal(err)
	}
	n1.Start(nil, "unshare", "-m", "sh", "-c", contained, found, weft, "flanneld", "--etcd-endpoints="+etcd.Endpoint, "--subnet-file="+n1.SubnetFile(),
		"--iface=eth0", "--ip-masq", "--v=2")
	startFlanneld(n2, flanneld, etcd)
	p1, p2 := n1.Pod(), n2.Pod()
	p1.Ping(t, p2.Address)
	p2.Ping(t, p1.Address)
}
