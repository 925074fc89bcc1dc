//go:build real && vm

package daemon_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"weft.dev/weft/internal/flannel/flanneltest"
)

// TestTunnels: nodes with Weft's daemon and with flanneld reach each other by WireGuard and by IP in IP, in every mode and family, also
// after either program restarts; the device survives restarts of Weft's daemon, and manual changes are reverted. The test runs in the
// virtual machine: other kernels may lack these devices.
func TestTunnels(t *testing.T) {
	weft, flanneld := programs(t)
	const six = `"EnableIPv6":true,"IPv6Network":"fd00:5::/48",`
	for _, c := range []struct{ name, families, backend, device string }{
		{"wireguard, a tunnel for each family", six, `{"Type":"wireguard","ListenPort":51900,"ListenPortV6":51901,"PSK":"AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA=","PersistentKeepaliveInterval":25}`, "flannel-wg"},
		{"wireguard, one tunnel over IPv6", six, `{"Type":"wireguard","Mode":"ipv6"}`, "flannel-wg"},
		{"wireguard, auto", six, `{"Type":"wireguard","Mode":"auto"}`, "flannel-wg"},
		{"ipip", "", `{"Type":"ipip"}`, "flannel.ipip"},
	} {
		t.Run(c.name, func(t *testing.T) {
			u := flanneltest.NewUnderlay(t)
			etcd := u.Etcd()
			etcd.Put(configKey, `{"Network":"10.5.0.0/16",`+c.families+`"EnableNFTables":true,"Backend":`+c.backend+`}`)
			n := &tunnels{t: t, etcd: etcd, ours: u.Node(), theirs: u.Node(), v6: c.families != ""}
			start := func() *flanneltest.Process {
				return n.ours.Start([]string{"WIREGUARD_KEY_FILE=" + filepath.Join(n.ours.Dir, "wgkey")}, weft, "flanneld", "--etcd-endpoints="+etcd.Endpoint,
					"--subnet-file="+n.ours.SubnetFile(), "--iface=eth0", "--ip-masq", "--v=2")
			}
			peer := func() *flanneltest.Process {
				return n.theirs.Start([]string{"WIREGUARD_KEY_FILE=" + filepath.Join(n.theirs.Dir, "wgkey")}, flanneld, "--etcd-endpoints="+etcd.Endpoint,
					"--subnet-file="+n.theirs.SubnetFile(), "--iface=eth0", "--ip-masq")
			}
			ours, theirs := start(), peer()
			n.reach()
			before := n.index(c.device)
			ours.Kill()
			n.reach()
			ours = start()
			ready(t, ours)
			n.reach()
			if after := n.index(c.device); after != before {
				t.Errorf("the device was made anew: index %s, then %s", before, after)
			}
			theirs.Stop() // removes its WireGuard devices
			peer()
			n.reach()
			t.Run("repairs", func(t *testing.T) {
				n := *n
				n.t = t
				for _, change := range []string{"link del " + c.device, "link set " + c.device + " down", "link set " + c.device + " mtu 1300"} {
					n.ours.IP(change)
					flanneltest.Eventually(t, change+" is repaired", func() error {
						out, err := n.ours.Run("ip", "link", "show", c.device)
						if err == nil && (!strings.Contains(out, "UP") || strings.Contains(out, "mtu 1300")) {
							err = errors.New(out)
						}
						return err
					})
					n.reach()
				}
			})
		})
	}
}

// ready waits until the daemon reports that it is ready.
func ready(t *testing.T, p *flanneltest.Process) {
	t.Helper()
	flanneltest.Eventually(t, "Weft's daemon is ready", func() error {
		if !strings.Contains(p.Log(), "msg=ready") {
			return errors.New(p.Log())
		}
		return nil
	})
}

// tunnels are two nodes, one with Weft's daemon.
type tunnels struct {
	t            *testing.T
	etcd         *flanneltest.Etcd
	ours, theirs *flanneltest.Node
	v6           bool
	pods         [2]*flanneltest.Pod
}

// reach checks that pods, and the nodes' IPv6 tunnel addresses, reach each other.
func (n *tunnels) reach() {
	n.t.Helper()
	if n.pods[0] == nil {
		n.pods = [2]*flanneltest.Pod{n.ours.Pod(), n.theirs.Pod()}
	}
	n.pods[0].Reach(n.t, n.pods[1].Address)
	n.pods[1].Reach(n.t, n.pods[0].Address)
	if !n.v6 {
		return
	}
	for _, way := range [][2]*flanneltest.Node{{n.ours, n.theirs}, {n.theirs, n.ours}} {
		to := strings.TrimSuffix(way[1].Subnet("FLANNEL_IPV6_SUBNET"), "1/64")
		flanneltest.Eventually(n.t, fmt.Sprintf("%s reaches %s", way[0].Name, to), func() error {
			_, err := way[0].Run("ping", "-6", "-c1", "-W1", to)
			return err
		})
	}
}

func (n *tunnels) index(device string) string {
	return strings.Fields(n.ours.IP("-o link show " + device))[0]
}
