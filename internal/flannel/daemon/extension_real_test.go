//go:build real

package daemon_test

import (
	"errors"
	"strings"
	"testing"

	"weft.dev/weft/internal/flannel/flanneltest"
)

// TestExtension: the administrator's commands connect nodes with Weft's daemon and with flanneld; the route of a node that goes is
// removed by the command for it.
func TestExtension(t *testing.T) {
	weft, flanneld := programs(t)
	u := flanneltest.NewUnderlay(t)
	etcd := u.Etcd()
	etcd.Put(configKey, `{"Network":"10.5.0.0/16","EnableNFTables":true,"Backend":{"Type":"extension","PreStartupCommand":"echo data",
		"SubnetAddCommand":"ip route replace $SUBNET via $PUBLIC_IP","SubnetRemoveCommand":"ip route del $SUBNET"}}`)
	n1, n2 := u.Node(), u.Node()
	p := startWeft(n1, weft, etcd)
	startFlanneld(n2, flanneld, etcd)
	p1, p2 := n1.Pod(), n2.Pod()
	p1.Reach(t, p2.Address)
	p2.Reach(t, p1.Address)
	for _, kv := range etcd.List(subnetsPrefix) {
		if !strings.Contains(kv.Value, `"BackendType":"extension","BackendData":"data"`) {
			t.Errorf("lease %+v", kv)
		}
	}
	third := subnetsPrefix + "10.5.200.0-24"
	etcd.Put(third, value(t, etcd, n2, "192.0.2.200", ""))
	has(t, n1, "10.5.200.0/24", true)
	etcd.Delete(third)
	has(t, n1, "10.5.200.0/24", false)
	etcd.Put(configKey, `{"Network":"10.5.0.0/16","Backend":{"Type":"extension","SubnetAddCommand":"ip route add $SUBNET | cat"}}`)
	flanneltest.Eventually(t, "a command that needs a shell is refused", func() error {
		if !strings.Contains(p.Log(), `Backend.SubnetAddCommand: \"|\" needs a shell`) {
			return errors.New(p.Log())
		}
		return nil
	})
	p1.Reach(t, p2.Address)
}
