//go:build real

package daemon_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"weft.dev/weft/internal/flannel/flanneltest"
)

// TestExtension: the administrator's commands connect nodes with Weft's daemon and with flanneld; when a node is removed, its command
// removes the route.
func TestExtension(t *testing.T) {
	weft, flanneld := programs(t)
	u := flanneltest.NewUnderlay(t)
	etcd := u.Etcd()
	etcd.Put(configKey, `{"Network":"10.5.0.0/16",`+below+`"EnableNFTables":true,"Backend":{"Type":"extension","PreStartupCommand":"echo data",
		"SubnetAddCommand":"ip route replace $SUBNET via $PUBLIC_IP","SubnetRemoveCommand":"ip route del $SUBNET"}}`)
	n1, n2 := u.Node(), u.Node()
	p := startWeft(n1, weft, etcd)
	theirs := startFlanneld(n2, flanneld, etcd)
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
	theirs.Stop() // after a lease that it cannot parse it removes all routes
	executed, text := filepath.Join(t.TempDir(), "executed"), `","BackendType":"extension","BackendData":"$(touch `
	for key, public := range map[string]string{"10.9.0.0-24": "192.0.2.9", "10.5.201.0-24": "192.0.2.9; touch " + executed, "10.5.202.0-24": "0.0.0.0"} {
		etcd.Put(subnetsPrefix+key, `{"PublicIP":"`+public+text+executed+`)"}`)
		logs(t, p, "lease="+key)
	}
	for _, subnet := range []string{"10.9.0.0/24", "10.5.201.0/24", "10.5.202.0/24"} {
		if out := n1.IP("route show " + subnet); out != "" {
			t.Errorf("a hostile lease has the route %s", out)
		}
	}
	etcd.Put(subnetsPrefix+"10.5.203.0-24", `{"PublicIP":"192.0.2.203`+text+executed+`)"}`) // its data must not be executed
	has(t, n1, "10.5.203.0/24", true)
	if _, err := os.Stat(executed); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a lease's text was executed: %v", err)
	}
	etcd.Put(configKey, `{"Network":"10.5.0.0/16","Backend":{"Type":"extension","SubnetAddCommand":"ip route add $SUBNET | cat"}}`)
	flanneltest.Eventually(t, "a command that needs a shell is refused", func() error {
		if !strings.Contains(p.Log(), `Backend.SubnetAddCommand: \"|\" needs a shell`) {
			return errors.New(p.Log())
		}
		return nil
	})
	p1.Reach(t, p2.Address)
}
