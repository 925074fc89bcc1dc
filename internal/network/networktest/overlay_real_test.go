//go:build real

package networktest_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/internal/agent"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/network/networktest"
	"weft.dev/weft/internal/openflow/ovstest"
)

// agentRuntime sends requests to the agent of a machine, which is a program of its own.
type agentRuntime struct{ *machine }

func (r agentRuntime) send(ctx context.Context, req *cni.Request) (*types100.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return (&cni.Client{Socket: agent.Socket(r.dir + "/run")}).Do(ctx, req)
}

func (r agentRuntime) Add(ctx context.Context, req *cni.Request) (*types100.Result, error) {
	return r.send(ctx, req)
}

func (r agentRuntime) Del(ctx context.Context, req *cni.Request) error {
	_, err := r.send(ctx, req)
	return err
}

func (r agentRuntime) Check(ctx context.Context, req *cni.Request) error {
	_, err := r.send(ctx, req)
	return err
}

// neighbour connects a node with a host outside, which is 198.51.100.9 and reaches the node at 198.51.100.1.
func neighbour(t *testing.T, node ns.NetNS) (outside ns.NetNS) {
	t.Helper()
	outside = space(t)
	err := node.Do(func(ns.NetNS) error {
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "outer"}, PeerName: "far", PeerNamespace: netlink.NsFd(int(outside.Fd()))})
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, at := range map[string]ns.NetNS{"outer": node, "far": outside} {
		last := map[string]byte{"outer": 1, "far": 9}[name]
		err := at.Do(func(ns.NetNS) error {
			device, err := netlink.LinkByName(name)
			if err != nil {
				return err
			}
			address := &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(198, 51, 100, last), Mask: net.CIDRMask(24, 32)}}
			return errors.Join(netlink.AddrAdd(device, address), netlink.LinkSetUp(device), os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0))
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return outside
}

// TestOverlayHostPorts: the overlay passes the suite of networks with host ports, by IPv4, in an agent on a real switch.
func TestOverlayHostPorts(t *testing.T) {
	networktest.RunHostPorts(t, func(t *testing.T) networktest.HostPortSubject {
		host := hostSpace(t)
		m := newMachine(t, "hostports", host, ovstest.StartIn(t, host).RunDir)
		m.create(&networkv1.ClusterNetwork{
			ObjectMeta: metav1.ObjectMeta{Name: "default"}, ServiceNetwork: "172.30.0.0/16", PluginName: "redhat/openshift-ovs-subnet",
			ClusterNetworks: []networkv1.ClusterNetworkEntry{{CIDR: "10.128.0.0/14", HostSubnetLength: 9}},
		})
		m.create(&networkv1.HostSubnet{ObjectMeta: metav1.ObjectMeta{Name: m.name}, Host: m.name, HostIP: hostAddress().String(), Subnet: "10.128.0.0/23"})
		return networktest.HostPortSubject{
			Records: agent.Records(m.dir + "/state"), Namespace: "default", Table: "weft", Watched: true,
			Node: host, Outside: neighbour(t, host), Addresses: []netip.Addr{netip.MustParseAddr("198.51.100.1")},
			Serve: func(t *testing.T) (networktest.Runtime, func()) {
				m.start()
				m.serves()
				return agentRuntime{m}, m.kill
			},
			Pod: func(t *testing.T, name string) (netns, uid string) {
				made := m.pod(name, "")
				var pod corev1.Pod
				if err := m.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: name}, &pod); err != nil {
					t.Fatal(err)
				}
				return made.Path(), string(pod.UID)
			},
		}
	})
}
