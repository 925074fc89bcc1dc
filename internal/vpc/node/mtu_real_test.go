//go:build real

package node_test

import (
	"context"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"testing"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/network"
	"weft.dev/weft/internal/ovn/ovntest"
	"weft.dev/weft/internal/placement"
	"weft.dev/weft/internal/vpc/node"
)

// narrow assigns each pod its own address, and one of them the MTU of its Subnet.
type narrow struct {
	eachItsOwn
	pod string
	mtu int
}

func (a *narrow) Of(ctx context.Context, namespace, pod, uid string) (node.Address, error) {
	address, err := a.eachItsOwn.Of(ctx, namespace, pod, uid)
	if pod == a.pod {
		address.MTU = a.mtu
	}
	return address, err
}

// The MTU of pods is that of the node's uplink less the tunnels' overhead, or that of the Subnet. The largest packet of a pod arrives on another
// node, unfragmented.
func TestMTU(t *testing.T) {
	const uplink, overhead, ofSubnet = 1500, 58, 1300
	site := siteWithPorts(t, 2)
	ctx, cancel := context.WithCancel(t.Context())
	addresses := &narrow{eachItsOwn: eachItsOwn{given: map[string]netip.Addr{}}, pod: "narrow", mtu: ofSubnet}
	var group sync.WaitGroup
	t.Cleanup(func() { cancel(); group.Wait() })
	var networks []*node.Network
	for _, chassis := range site.Chassis {
		ovntest.Run(t, chassis.NetNS, "ip", "link", "set", "br-phy", "mtu", strconv.Itoa(uplink))
		ovntest.Run(t, chassis.NetNS, "ip", "route", "add", "default", "dev", "br-phy")
		n := node.New(startNode(ctx, t, chassis.NetNS, "boot"), network.Deps{Records: &oneRecord{}},
			node.Options{Node: chassis.Name, Database: "unix:" + chassis.DBSock, Addresses: addresses})
		group.Go(func() {
			if err := n.Run(ctx); err != nil {
				t.Error(err)
			}
		})
		ovntest.Eventually(t, "the network of "+chassis.Name+" is ready", func() bool { return n.Ready() == nil })
		networks = append(networks, n)
	}
	add := func(at *node.Network, name string) (*ovntest.Pod, attach.Record) {
		t.Helper()
		pod := ovntest.NewPod(t)
		rec, err := at.Plan(ctx, podRequest(name, pod.ProcPath()), placement.Decision{}, attach.InUse{})
		must(t, err)
		rec.ContainerID, rec.IfName, rec.Netns = "sandbox-"+name, "eth0", pod.ProcPath()
		_, err = at.Connect(ctx, &rec)
		must(t, err)
		return pod, rec
	}
	one, _ := add(networks[0], "one")
	_, other := add(networks[1], "other")
	small, _ := add(networks[0], addresses.pod)
	for pod, want := range map[*ovntest.Pod]int{one: uplink - overhead, small: ofSubnet} {
		if have := ovntest.Run(t, pod.NetNS, "ip", "-o", "link", "show", "eth0"); !strings.Contains(have, fmt.Sprintf("mtu %d ", want)) {
			t.Errorf("want MTU %d: %s", want, have)
		}
	}
	to := other.Addresses[0].Addr().String()
	one.Reaches(to)
	const payload = uplink - overhead - 28 // less the headers of IPv4 and ICMP
	if out, err := ovntest.Try(one.NetNS, "ping", "-n", "-q", "-c", "1", "-W", "5", "-M", "do", "-s", strconv.Itoa(payload), to); err != nil {
		t.Errorf("the largest packet does not arrive: %v %s", err, out)
	}
}
