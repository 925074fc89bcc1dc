//go:build real

package daemon_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"weft.dev/weft/internal/flannel/flanneltest"
)

const configKey, subnetsPrefix = "/coreos.com/network/config", "/coreos.com/network/subnets/"

// below is a part of the configuration that keeps nodes from the subnets that tests use for other leases and entries.
const below = `"SubnetMin":"10.5.1.0","SubnetMax":"10.5.99.0",`

var binary string //nolint:gochecknoglobals // set once, by TestMain

func TestMain(m *testing.M) {
	os.Exit(flanneltest.Main(m, func(bin string) { binary = filepath.Join(bin, "weft") }, "weft"))
}

// programs returns the programs that the nodes run.
func programs(t *testing.T) (weft, flanneld string) {
	t.Helper()
	return binary, flanneltest.Flanneld(t)
}

func startWeft(n *flanneltest.Node, weft string, etcd *flanneltest.Etcd, args ...string) *flanneltest.Process {
	return n.Start(nil, append([]string{weft, "flanneld", "--etcd-endpoints=" + etcd.Endpoint, "--subnet-file=" + n.SubnetFile(), "--iface=eth0", "--ip-masq", "--v=2"}, args...)...)
}

func startFlanneld(n *flanneltest.Node, flanneld string, etcd *flanneltest.Etcd, args ...string) *flanneltest.Process {
	return n.Start(nil, append([]string{flanneld, "--etcd-endpoints=" + etcd.Endpoint, "--subnet-file=" + n.SubnetFile(), "--iface=eth0", "--ip-masq"}, args...)...)
}

// entries are the entries of a node for its peers.
func entries(n *flanneltest.Node) string {
	out := n.IP("route show proto 88")
	for _, device := range []string{"flannel.1", "flannel.7"} { // a device that does not exist has none; a daemon may just be replacing it
		for _, command := range []string{"ip neigh show nud permanent dev ", "ip -d link show ", "bridge fdb show dev "} { // -d: also whether it learns
			if shown, err := n.Run(strings.Fields(command + device)...); err == nil {
				out += shown
			}
		}
	}
	return out
}

func has(t *testing.T, n *flanneltest.Node, subnet string, want bool) {
	t.Helper()
	flanneltest.Eventually(t, fmt.Sprintf("route to %s: %t", subnet, want), func() error {
		if got := n.IP("route show " + subnet); (got != "") != want {
			return fmt.Errorf("routes: %q", got)
		}
		return nil
	})
}
