//go:build real

package host_test

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/link/nstest"
	"weft.dev/weft/internal/overlay/host"
)

// proxyRules are rules like kube-proxy's, which lead to a node's closed ports and to the metadata service.
const proxyRules = `table ip proxy { chain services { type nat hook prerouting priority dstnat;
	ip daddr 172.30.0.20 tcp dport 80 dnat to 192.0.2.1:22625
	ip daddr 172.30.0.21 tcp dport 80 dnat to 192.0.2.1:22623
	ip daddr 172.30.0.22 tcp dport 80 dnat to 192.0.2.9:22624
	ip daddr 172.30.0.23 tcp dport 80 dnat to 169.254.169.254:80
	ip daddr 192.0.2.1 tcp dport 30053 dnat to 169.254.169.254:53
	ip daddr 192.0.2.1 tcp dport 30080 dnat to 169.254.169.254:80
	ip daddr 192.0.2.1 tcp dport 30081 dnat to 192.0.2.9:22624
	ip daddr 192.0.2.1 tcp dport 30082 dnat to 192.0.2.9:22625
	ip daddr 10.128.0.1 tcp dport 30082 dnat to 192.0.2.9:22625
	ip daddr 10.130.0.1 tcp dport 30082 dnat to 192.0.2.9:22625
	ip daddr 10.128.0.1 tcp dport 30083 dnat to 192.0.2.1:22625
}; }
`

// Whatever the host translates, it forwards no pod to the metadata service, except to its name server, or to the closed ports of nodes. From a
// gateway's address, where no egress firewall was checked, it forwards no pod out of the cluster.
func TestGuardRejects(t *testing.T) {
	node, pod, cloud := nstest.New(t), nstest.New(t), nstest.New(t)
	programRules(t, node, sample().Rules())
	nstest.Do(t, node, func() error { return guardedNode(t, pod, cloud) })
	nstest.Do(t, pod, func() error {
		gateway := &netlink.Route{Gw: net.ParseIP("10.128.0.1")}
		return errors.Join(up("eth0", podAddress+"/23"), netlink.RouteAdd(gateway))
	})
	nstest.Do(t, cloud, func() error { return errors.Join(up("far", neighbourAddress+"/24"), up("far", "169.254.169.254/32")) })
	nstest.Do(t, node, func() error { return acceptTCP(t, nodeAddress+":22623", nodeAddress+":22625") })
	nstest.Do(t, cloud, func() error {
		return acceptTCP(t, "169.254.169.254:80", "169.254.169.254:53", neighbourAddress+":22624", neighbourAddress+":22625")
	})
	nstest.Do(t, pod, func() error {
		for to, passes := range map[string]bool{
			"172.30.0.20:80": true, "172.30.0.21:80": false, "172.30.0.22:80": false, "172.30.0.23:80": false,
			nodeAddress + ":30053": true, nodeAddress + ":30080": false, nodeAddress + ":30081": false,
			nodeAddress + ":22623": false, nodeAddress + ":22625": true, neighbourAddress + ":22624": false, neighbourAddress + ":22625": true,
			"169.254.169.254:80": false, "169.254.169.254:53": true,
			nodeAddress + ":30082": true, "10.128.0.1:30082": false, "10.130.0.1:30082": false, "10.128.0.1:30083": true,
		} {
			conn, err := (&net.Dialer{Timeout: 10 * time.Second}).DialContext(t.Context(), "tcp4", to)
			if err == nil {
				_ = conn.Close()
			}
			if passes && err != nil || !passes && !errors.Is(err, unix.ECONNREFUSED) {
				t.Errorf("%s: passes: %t, want %t (%v)", to, err == nil, passes, err)
			}
		}
		return nil
	})
}

// guardedNode makes the calling thread's namespace a node with a pod behind tun0, and a network outside with the cloud's metadata service.
func guardedNode(t *testing.T, pod, cloud string) error {
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0); err != nil {
		return err
	}
	for _, pair := range []struct{ name, peer, space string }{{"uplink", "far", cloud}, {host.Tun, "eth0", pod}} {
		space, err := os.Open(pair.space)
		if err != nil {
			return err
		}
		err = netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: pair.name}, PeerName: pair.peer, PeerNamespace: netlink.NsFd(space.Fd())})
		if err = errors.Join(err, space.Close()); err != nil {
			return err
		}
	}
	metadata := &netlink.Route{Dst: &net.IPNet{IP: net.IPv4(169, 254, 169, 254).To4(), Mask: net.CIDRMask(32, 32)}, Gw: net.ParseIP(neighbourAddress)}
	err := errors.Join(up("lo", "127.0.0.1/8"), up("uplink", nodeAddress+"/24"), up(host.Tun, "10.128.0.1/23"), netlink.RouteAdd(metadata))
	if err != nil {
		return err
	}
	proxy := exec.CommandContext(t.Context(), "nft", "-f", "-")
	proxy.Stdin = bytes.NewBufferString(proxyRules)
	if out, err := proxy.CombinedOutput(); err != nil {
		return fmt.Errorf("nft: %w: %s", err, out)
	}
	return nil
}

// acceptTCP accepts connections at addresses of the calling thread's namespace until the test ends.
func acceptTCP(t *testing.T, addresses ...string) error {
	for _, address := range addresses {
		l, err := new(net.ListenConfig).Listen(t.Context(), "tcp4", address)
		if err != nil {
			return err
		}
		t.Cleanup(func() { _ = l.Close() })
	}
	return nil
}
