//go:build real

package host_test

import (
	"context"
	"errors"
	"maps"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/hostport"
	"weft.dev/weft/internal/link/nstest"
	"weft.dev/weft/internal/nft"
	"weft.dev/weft/internal/nft/ruleset"
	"weft.dev/weft/internal/overlay/host"
	"weft.dev/weft/internal/overlay/pipeline"
	"weft.dev/weft/internal/reconcile"
)

// Addresses of TestHostPortsLead.
const (
	nodeAddress, neighbourAddress = "192.0.2.1", "192.0.2.9"
	podAddress, serviceAddress    = "10.128.0.5", "172.30.0.10"
	egressAddress                 = "192.0.2.100"
)

// Host ports lead to pods at the node's own addresses, and at no other address that the kernel may take for the node's: for a neighbour,
// not in the loopback range; for the node, only at 127.0.0.1 of it; not at the Services' addresses, which kube-proxy may put on the node;
// and not at egress IPs.
func TestHostPortsLead(t *testing.T) {
	node, neighbour := nstest.New(t), nstest.New(t)
	want := sample().Rules()
	maps.Copy(want, host.Published(&hostport.Published{
		Pod: "shop/web", Addresses: []netip.Addr{netip.MustParseAddr(podAddress)}, Ports: []cni.HostPort{{Port: 8080, Protocol: "udp", ContainerPort: 80}},
	}))
	maps.Copy(want, host.EgressIP{VNID: 42, Address: netip.MustParseAddr(egressAddress), MAC: pipeline.EgressMAC(42)}.Rules())
	programRules(t, node, want)
	nstest.Do(t, node, func() error { return makeNode(neighbour) })
	nstest.Do(t, neighbour, func() error {
		return errors.Join(nstest.Up("far", neighbourAddress+"/24"), via("127.0.0.1"), via(serviceAddress))
	})
	for _, c := range []struct {
		client, from string
		to           []string
	}{
		{"a neighbour", neighbour, []string{"127.0.0.1", serviceAddress, egressAddress}},
		{"the node", node, []string{"127.0.0.53", serviceAddress, egressAddress}},
	} {
		nstest.Do(t, c.from, func() error {
			for _, to := range append(c.to, nodeAddress) {
				if err := send(t.Context(), to); err != nil {
					return err
				}
			}
			return nil
		})
		// Packets arrive in order: once the last one is translated, the others would be.
		nstest.Do(t, node, func() error {
			led, err := awaitLed()
			for _, to := range c.to {
				if led[to] {
					t.Errorf("%s reaches the pod by %s", c.client, to)
				}
			}
			return errors.Join(err, netlink.ConntrackTableFlush(netlink.ConntrackTable))
		})
	}
}

// programRules commits items in a namespace.
func programRules(t *testing.T, netns string, want map[nft.Key]nft.Item) {
	t.Helper()
	engine, err := ruleset.NewEngine(ruleset.Options{Netns: netns, Tables: host.Tables()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { engine.Close() })
	have, err := engine.Read(t.Context())
	if err == nil {
		err = engine.Commit(t.Context(), reconcile.Diff(want, have))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// awaitLed waits for a connection at the node's address that is translated to the pod, and returns the addresses of all such connections.
func awaitLed() (map[string]bool, error) {
	const patience = 10 * time.Second
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		led, err := ledTo(podAddress)
		if err != nil || led[nodeAddress] {
			return led, err
		}
		if time.Now().After(deadline) {
			return led, errors.New("no client reaches the pod by the node's address")
		}
	}
}

// makeNode makes the calling thread's namespace a node with a neighbour in another namespace.
func makeNode(neighbour string) error {
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0); err != nil {
		return err
	}
	return errors.Join(
		nstest.Veth("uplink", "far", neighbour), netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: host.Tun}, PeerName: "switch"}),
		nstest.Up("lo", serviceAddress+"/32"), nstest.Up("uplink", nodeAddress+"/24"), nstest.Up("uplink", egressAddress+"/32"), nstest.Up(host.Tun, "10.128.0.1/23"), nstest.Up("switch", "198.51.100.1/32"), knowPod(),
		os.WriteFile("/proc/sys/net/ipv4/conf/"+host.Tun+"/route_localnet", []byte("1"), 0))
}

// knowPod adds the pod's MAC address to the node's neighbour table, so that packets to it are sent.
func knowPod() error {
	tun, err := netlink.LinkByName(host.Tun)
	if err != nil {
		return err
	}
	return netlink.NeighSet(&netlink.Neigh{
		LinkIndex: tun.Attrs().Index, State: netlink.NUD_PERMANENT, IP: net.ParseIP(podAddress), HardwareAddr: net.HardwareAddr{0x0a, 0x58, 10, 128, 0, 5},
	})
}

// via adds a route to an address by the node.
func via(address string) error {
	return netlink.RouteAdd(&netlink.Route{
		Dst: &net.IPNet{IP: net.ParseIP(address).To4(), Mask: net.CIDRMask(32, 32)}, Gw: net.ParseIP(nodeAddress), Src: net.ParseIP(neighbourAddress),
	})
}

// send sends a packet to the host port at an address.
func send(ctx context.Context, to string) error {
	conn, err := new(net.Dialer).DialContext(ctx, "udp4", net.JoinHostPort(to, "8080"))
	if err != nil {
		return err
	}
	_, err = conn.Write([]byte("x"))
	return errors.Join(err, conn.Close())
}

// ledTo returns the destination addresses of connections that are translated to address.
func ledTo(address string) (map[string]bool, error) {
	flows, err := netlink.ConntrackTableList(netlink.ConntrackTable, unix.AF_INET)
	by := map[string]bool{}
	for _, flow := range flows {
		if flow.Reverse.SrcIP.String() == address {
			by[flow.Forward.DstIP.String()] = true
		}
	}
	return by, err
}
