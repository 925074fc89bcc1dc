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

// Addresses of TestGuardRejects: a client in another network; its gateway, which is the node; and a cloud's load balancer.
const (
	clientAddress, clientGateway = "198.51.100.2", "198.51.100.1"
	balancerAddress              = "192.0.2.7"
)

// proxyRules are rules like kube-proxy's, which lead to a node's closed ports and to the metadata service, and a rule by which the node serves
// the address of a cloud's load balancer.
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
	ip daddr 192.0.2.1 tcp dport 30084 dnat to 192.0.2.1:22623
	ip daddr 192.0.2.1 tcp dport 30085 dnat to 192.0.2.1:22625
	ip daddr 192.0.2.1 tcp dport 30086 dnat to 10.128.0.5:22623
	ip daddr 192.0.2.7 redirect
}; chain own { type nat hook output priority -100;
	ip daddr 192.0.2.1 tcp dport 30080 dnat to 169.254.169.254:80
	ip daddr 192.0.2.1 tcp dport 30081 dnat to 192.0.2.9:22624
	ip daddr 192.0.2.1 tcp dport 30084 dnat to 192.0.2.1:22623
}; chain sources { type nat hook postrouting priority srcnat;
	ip saddr 198.51.100.2 oifname "uplink" masquerade
}; }
`

// Whatever the host translates, it forwards no pod to the metadata service, except to its name server, or to the closed ports of nodes. From
// a gateway's address, where no egress firewall was checked, it forwards no pod out of the cluster. Other nodes' pods have the address of
// their node, so what the host translates to a closed port is rejected for every client but itself. What is not translated, what keeps its
// port, and what goes to a pod, passes.
func TestGuardRejects(t *testing.T) {
	node, pod, cloud, client := nstest.New(t), nstest.New(t), nstest.New(t), nstest.New(t)
	programRules(t, node, sample().Rules())
	nstest.Do(t, node, func() error { return guardedNode(t, pod, cloud, client) })
	nstest.Do(t, pod, func() error {
		gateway := &netlink.Route{Gw: net.ParseIP("10.128.0.1")}
		return errors.Join(nstest.Up("eth0", podAddress+"/23"), netlink.RouteAdd(gateway), acceptTCP(t, podAddress+":22623"))
	})
	nstest.Do(t, client, func() error {
		return errors.Join(nstest.Up("eth0", clientAddress+"/24"), netlink.RouteAdd(&netlink.Route{Gw: net.ParseIP(clientGateway)}))
	})
	nstest.Do(t, cloud, func() error {
		return errors.Join(nstest.Up("far", neighbourAddress+"/24"), nstest.Up("far", "169.254.169.254/32"))
	})
	nstest.Do(t, node, func() error { return acceptTCP(t, nodeAddress+":22623", nodeAddress+":22625", clientGateway+":22623") })
	nstest.Do(t, cloud, func() error {
		return acceptTCP(t, "169.254.169.254:80", "169.254.169.254:53", neighbourAddress+":22624", neighbourAddress+":22625")
	})
	connects(t, "a pod", pod, map[string]bool{
		"172.30.0.20:80": true, "172.30.0.21:80": false, "172.30.0.22:80": false, "172.30.0.23:80": false,
		nodeAddress + ":30053": true, nodeAddress + ":30080": false, nodeAddress + ":30081": false,
		nodeAddress + ":22623": false, nodeAddress + ":22625": true, neighbourAddress + ":22624": false, neighbourAddress + ":22625": true,
		"169.254.169.254:80": false, "169.254.169.254:53": true,
		nodeAddress + ":30082": true, "10.128.0.1:30082": false, "10.130.0.1:30082": false, "10.128.0.1:30083": true,
		nodeAddress + ":30084": false, nodeAddress + ":30085": true, balancerAddress + ":22623": false,
	})
	connects(t, "another host", client, map[string]bool{
		nodeAddress + ":30053": true, nodeAddress + ":30080": false, nodeAddress + ":30081": false, nodeAddress + ":30082": true,
		nodeAddress + ":30084": false, nodeAddress + ":30085": true, nodeAddress + ":30086": true,
		nodeAddress + ":22623": true, nodeAddress + ":22625": true, balancerAddress + ":22623": true,
		neighbourAddress + ":22624": true, "169.254.169.254:80": true,
	})
	connects(t, "the node", node, map[string]bool{
		nodeAddress + ":30080": true, nodeAddress + ":30081": true, nodeAddress + ":30084": true, nodeAddress + ":22623": true,
	})
}

// connects opens TCP connections from a namespace, and compares which pass. All others must be refused.
func connects(t *testing.T, client, netns string, want map[string]bool) {
	t.Helper()
	nstest.Do(t, netns, func() error {
		for to, passes := range want {
			conn, err := (&net.Dialer{Timeout: 10 * time.Second}).DialContext(t.Context(), "tcp4", to)
			if err == nil {
				_ = conn.Close()
			}
			if passes && err != nil || !passes && !errors.Is(err, unix.ECONNREFUSED) {
				t.Errorf("%s to %s: passes: %t, want %t (%v)", client, to, err == nil, passes, err)
			}
		}
		return nil
	})
}

// guardedNode makes the calling thread's namespace a node with a pod behind tun0, a network outside with the cloud's metadata service, and
// another network with a client.
func guardedNode(t *testing.T, pod, cloud, client string) error {
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0); err != nil {
		return err
	}
	for _, pair := range []struct{ name, peer, space string }{{"uplink", "far", cloud}, {"downlink", "eth0", client}, {host.Tun, "eth0", pod}} {
		if err := nstest.Veth(pair.name, pair.peer, pair.space); err != nil {
			return err
		}
	}
	metadata := &netlink.Route{Dst: &net.IPNet{IP: net.IPv4(169, 254, 169, 254).To4(), Mask: net.CIDRMask(32, 32)}, Gw: net.ParseIP(neighbourAddress)}
	err := errors.Join(nstest.Up("lo", "127.0.0.1/8"), nstest.Up("uplink", nodeAddress+"/24"), nstest.Up("downlink", clientGateway+"/24"), nstest.Up(host.Tun, "10.128.0.1/23"), netlink.RouteAdd(metadata))
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
