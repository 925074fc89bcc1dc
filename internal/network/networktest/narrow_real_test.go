//go:build real

package networktest_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/internal/agent"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/openflow/ovstest"
)

// TestNarrowMTU: Linux has no IPv6 on a device with an MTU below 1280, and the settings of its IPv6 are missing there. With the smallest MTU
// that a ClusterNetwork takes, and with an uplink of 1300 bytes, the agent starts, serves pods, repairs its links, and is ready after a
// restart.
func TestNarrowMTU(t *testing.T) {
	for name, c := range map[string]struct {
		asked       *uint32
		uplink, mtu int
	}{
		"narrow-asked":  {asked: new(uint32(576)), uplink: 1500, mtu: 576},
		"narrow-uplink": {uplink: 1300, mtu: 1250},
	} {
		t.Run(name, func(t *testing.T) {
			host := hostSpace(t)
			err := host.Do(func(ns.NetNS) error { return setMTU("up0", c.uplink) })
			if err != nil {
				t.Fatal(err)
			}
			m := newMachine(t, name, host, ovstest.StartIn(t, host).RunDir)
			m.create(&networkv1.ClusterNetwork{
				ObjectMeta: metav1.ObjectMeta{Name: "default"}, ServiceNetwork: "172.30.0.0/16", PluginName: "redhat/openshift-ovs-subnet",
				ClusterNetworks: []networkv1.ClusterNetworkEntry{{CIDR: "10.128.0.0/14", HostSubnetLength: 9}}, MTU: c.asked,
			})
			m.create(&networkv1.HostSubnet{ObjectMeta: metav1.ObjectMeta{Name: name}, Host: name, HostIP: hostAddress().String(), Subnet: "10.128.0.0/23"})
			m.start()
			m.ready()
			pods := map[string]ns.NetNS{}
			serves := func(when string) {
				t.Helper()
				for name, pod := range pods {
					if err := pod.Do(func(ns.NetNS) error { return wantMTU("eth0", c.mtu) }); err != nil {
						t.Errorf("%s: pod %s: %v", when, name, err)
					}
					if err := reaches(pod, netip.MustParseAddr("10.128.0.1"), connects); err != nil {
						t.Errorf("%s: pod %s: %v", when, name, err)
					}
					if _, err := m.do(cni.CommandCheck, name, pod.Path()); err != nil {
						t.Errorf("%s: CHECK of pod %s: %v", when, name, err)
					}
				}
			}
			add := func(pod string) {
				t.Helper()
				pods[pod] = m.pod(pod, "")
				m.add(pod, pods[pod])
			}
			add(name + "-a")
			serves("attached")
			m.kill()
			m.start()
			m.ready()
			add(name + "-b")
			serves("after a restart")
			if err := host.Do(func(ns.NetNS) error { return setMTU("tun0", c.mtu-10) }); err != nil {
				t.Fatal(err)
			}
			eventually(t, "tun0 is repaired", func() error {
				return host.Do(func(ns.NetNS) error { return wantMTU("tun0", c.mtu) })
			})
			m.ready()
			serves("repaired")
		})
	}
}

// ready waits until the agent serves pods and all its checks are well.
func (m *machine) ready() {
	m.t.Helper()
	m.serves()
	eventually(m.t, "readiness", func() error {
		answer := m.run("curl", "-sS", "-w", "%{http_code}", "http://"+agent.DefaultHealthAddress+"/readyz")
		if !strings.HasSuffix(answer, strconv.Itoa(http.StatusOK)) {
			return errors.New(answer)
		}
		return nil
	})
}

func setMTU(device string, mtu int) error {
	link, err := netlink.LinkByName(device)
	if err != nil {
		return err
	}
	return netlink.LinkSetMTU(link, mtu)
}

func wantMTU(device string, mtu int) error {
	link, err := netlink.LinkByName(device)
	if err != nil {
		return err
	}
	if have := link.Attrs().MTU; have != mtu {
		return fmt.Errorf("%s has MTU %d, want %d", device, have, mtu)
	}
	return nil
}
