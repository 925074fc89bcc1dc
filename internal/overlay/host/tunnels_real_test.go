//go:build real

package host_test

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"weft.dev/weft/internal/link/nstest"
)

const guestAddress = "10.244.0.5"

// A pod of another network on the node cannot reach another node's tunnel ports, where its packets would be taken for the node's. It reaches
// other ports, and the node reaches all.
func TestTunnelsOfOtherNodes(t *testing.T) {
	node, neighbour, guest := nstest.New(t), nstest.New(t), nstest.New(t)
	programTunnels(t, node)
	nstest.Do(t, node, func() error {
		if err := makeNode(neighbour); err != nil {
			return err
		}
		return makeGuest(guest)
	})
	nstest.Do(t, guest, func() error {
		return errors.Join(nstest.Up("eth0", guestAddress+"/24"), routeBy("192.0.2.0/24", "10.244.0.1"))
	})
	nstest.Do(t, neighbour, func() error {
		return errors.Join(nstest.Up("far", neighbourAddress+"/24"), routeBy("10.244.0.0/24", nodeAddress))
	})
	tunnels, other := listenTunnels(t, neighbour)
	say := func(from, port, words string) { nstest.Say(t, from, neighbourAddress, port, words) }
	for port := range tunnels {
		say(guest, port, "the guest")
	}
	say(guest, "4790", "the guest")
	if got := received(t, other); got != "the guest" {
		t.Fatalf("the other port received %q: the guest has no path", got)
	}
	for port, tunnel := range tunnels {
		say(node, port, "the node")
		if got := received(t, tunnel); got != "the node" {
			t.Errorf("port %s received %q first", port, got)
		}
	}
}

// Another node's pod cannot reach this node's tunnel ports through a node port of it either: the translated packet has that node's address.
func TestTunnelsBehindNodePorts(t *testing.T) {
	node, neighbour := nstest.New(t), nstest.New(t)
	programTunnels(t, node)
	nstest.Do(t, node, func() error { return makeNode(neighbour) })
	tunnels, other := listenTunnels(t, node)
	nstest.Do(t, node, func() error {
		out, err := exec.CommandContext(t.Context(), "nft", fmt.Sprintf(`add table ip proxy
			add chain ip proxy ports { type nat hook prerouting priority dstnat; }
			add rule ip proxy ports udp dport { 34789, 34790, 36081 } dnat to %s:udp dport map { 34789 : 4789, 34790 : 4790, 36081 : 6081 }`, nodeAddress)).CombinedOutput()
		if err != nil {
			err = fmt.Errorf("nft: %w: %s", err, out)
		}
		return err
	})
	nstest.Do(t, neighbour, func() error { return nstest.Up("far", neighbourAddress+"/24") })
	say := func(port, words string) { nstest.Say(t, neighbour, nodeAddress, port, words) }
	say("34789", "by a node port")
	say("36081", "by a node port")
	say("34790", "by a node port")
	if got := received(t, other); got != "by a node port" {
		t.Fatalf("the other port received %q: node ports lead nowhere", got)
	}
	for port, tunnel := range tunnels {
		say(port, "the neighbour")
		if got := received(t, tunnel); got != "the neighbour" {
			t.Errorf("port %s received %q first", port, got)
		}
	}
}

// makeGuest connects a namespace to that of the calling thread, as another network connects a pod.
func makeGuest(guest string) error {
	return errors.Join(nstest.Veth("guest", "eth0", guest), nstest.Up("guest", "10.244.0.1/24"))
}

func routeBy(to, gateway string) error {
	_, prefix, err := net.ParseCIDR(to)
	if err != nil {
		return err
	}
	return netlink.RouteAdd(&netlink.Route{Dst: prefix, Gw: net.ParseIP(gateway)})
}

// programTunnels programs the rules of a node whose pods must not reach UDP 6081 either, with the neighbour as another node.
func programTunnels(t *testing.T, node string) {
	t.Helper()
	c := sample()
	c.ClosedPorts = []uint16{6081}
	want := c.Rules()
	maps.Copy(want, c.RemoteRules(netip.MustParseAddr(neighbourAddress)))
	programRules(t, node, want)
}

// listenTunnels listens in a namespace on the ports of tunnels, which it returns by their numbers, and on another port, 4790.
func listenTunnels(t *testing.T, in string) (tunnels map[string]*net.UDPConn, other *net.UDPConn) {
	t.Helper()
	tunnels = map[string]*net.UDPConn{}
	for _, port := range []int{4789, 6081, 4790} {
		nstest.Do(t, in, func() error {
			conn, err := net.ListenUDP("udp4", &net.UDPAddr{Port: port})
			if err != nil {
				return err
			}
			t.Cleanup(func() { _ = conn.Close() })
			if port == 4790 {
				other = conn
			} else {
				tunnels[strconv.Itoa(port)] = conn
			}
			return nil
		})
	}
	return tunnels, other
}

// received returns the first datagram.
func received(t *testing.T, conn *net.UDPConn) string {
	t.Helper()
	if err := conn.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	data := make([]byte, 100)
	n, err := conn.Read(data)
	if err != nil {
		t.Fatal(err)
	}
	return string(data[:n])
}
