package ovntest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"

	"weft.dev/weft/internal/child"
	"weft.dev/weft/internal/openflow/ovstest"
)

const centralAddress = "172.31.0.10"

// Site is a Central and chassis that share a network, each in a separate namespace.
type Site struct {
	*Central
	// Chassis are the nodes, numbered from 1.
	Chassis []*Chassis

	fabric ns.NetNS
	ports  int
}

// Chassis is a node: Open vSwitch with br-int, and ovn-controller.
type Chassis struct {
	*ovstest.Switch
	// Name is the chassis's name.
	Name string

	site       *Site
	controller *child.Process
	ports      int
}

// NewSite starts a Central and the given number of chassis.
func NewSite(t testing.TB, chassis int) *Site {
	t.Helper()
	s := &Site{fabric: ovstest.NewNetNS(t)}
	Run(t, s.fabric, "ip", "link", "add", "name", "fabric", "type", "bridge")
	Run(t, s.fabric, "ip", "link", "set", "fabric", "up")
	central := ovstest.NewNetNS(t)
	s.Wire(t, central, "eth0")
	Run(t, central, "ip", "addr", "add", centralAddress+"/24", "dev", "eth0")
	s.Central = StartAll(t, central)
	for i := range chassis {
		s.Chassis = append(s.Chassis, s.join(t, i+1))
	}
	return s
}

// Sync waits until the northbound database is in effect for packets: also in the datapaths' caches, whose flows may be older than those of
// br-int.
func (s *Site) Sync() {
	s.t.Helper()
	s.Nbctl("--wait=hv", fmt.Sprintf("--timeout=%d", deadline/time.Second), "sync")
	for _, c := range s.Chassis {
		for range 2 { // a round that was under way may have passed the flow
			c.AppCtl("revalidator/wait")
		}
	}
}

// Wire creates a device of a namespace in the chassis' network.
func (s *Site) Wire(t testing.TB, netns ns.NetNS, device string) {
	t.Helper()
	s.ports++
	Veth(t, netns, device, s.fabric, fmt.Sprintf("p%d", s.ports))
	Run(t, s.fabric, "ip", "link", "set", fmt.Sprintf("p%d", s.ports), "master", "fabric")
}

// Veth creates a pair of devices that are up. They complete checksums, as the userspace datapath needs.
func Veth(t testing.TB, one ns.NetNS, device string, other ns.NetNS, peer string) {
	t.Helper()
	for _, netns := range []ns.NetNS{one, other} {
		Run(t, netns, "ip", "link", "set", "lo", "up")
	}
	Run(t, one, "ip", "link", "add", "name", device, "type", "veth", "peer", "name", peer, "netns", procPath(other))
	for netns, name := range map[ns.NetNS]string{one: device, other: peer} {
		Run(t, netns, "ethtool", "-K", name, "tx", "off", "tso", "off", "gso", "off")
		Run(t, netns, "ip", "link", "set", name, "up")
	}
}

func (s *Site) join(t testing.TB, i int) *Chassis {
	t.Helper()
	netns := ovstest.NewNetNS(t)
	s.Wire(t, netns, "eth0")
	c := &Chassis{Switch: ovstest.StartIn(t, netns), Name: fmt.Sprintf("node%d", i), site: s}
	address := fmt.Sprintf("172.31.0.%d", i)
	c.VSCtl("--no-wait", "set", "open", ".", "external_ids:system-id="+c.Name, "external_ids:hostname="+c.Name,
		"external_ids:ovn-remote=tcp:"+centralAddress+":6642", "external_ids:ovn-encap-type=geneve", "external_ids:ovn-encap-ip="+address,
		"external_ids:ovn-bridge-datapath-type="+ovstest.Datapath)
	c.VSCtl("add-br", "br-phy", "--", "set", "bridge", "br-phy", "datapath_type="+ovstest.Datapath, "--", "add-port", "br-phy", "eth0",
		"--", "add-br", "br-int", "--", "set", "bridge", "br-int", "datapath_type="+ovstest.Datapath, "fail_mode=secure")
	Run(t, netns, "ip", "addr", "add", address+"/24", "dev", "br-phy")
	Run(t, netns, "ip", "link", "set", "br-phy", "up")
	c.StartController(t)
	t.Cleanup(func() { c.StopController() })
	Eventually(t, c.Name+" is a chassis", func() bool {
		return s.Sbctl("--bare", "--columns=name", "find", "Chassis", "name="+c.Name) == c.Name
	})
	return c
}

// StartController starts ovn-controller.
func (c *Chassis) StartController(t testing.TB) {
	t.Helper()
	c.controller = launch(t, c.NetNS, c.RunDir, "ovn-controller", "unix:"+c.DBSock, "--log-file="+filepath.Join(c.RunDir, "ovn-controller.log"))
}

// StopController kills ovn-controller.
func (c *Chassis) StopController() {
	if c.controller != nil {
		c.controller.Kill()
		c.controller = nil
	}
}

// Pod is a namespace with eth0 on a chassis's br-int.
type Pod struct {
	ns.NetNS
	// Device is the other end of eth0, on the chassis.
	Device string

	t testing.TB
}

// NewPod creates a namespace without a device.
func NewPod(t testing.TB) *Pod {
	t.Helper()
	return &Pod{NetNS: ovstest.NewNetNS(t), t: t}
}

// ProcPath is the namespace's path for other processes.
func (p *Pod) ProcPath() string { return procPath(p.NetNS) }

func procPath(netns ns.NetNS) string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), netns.Fd()) }

// AddPod creates a pod whose interface is the logical port. The address includes the subnet's prefix length.
func (c *Chassis) AddPod(t testing.TB, port, mac, address, gateway string) *Pod {
	t.Helper()
	c.ports++
	p := NewPod(t)
	p.Device = fmt.Sprintf("v%d", c.ports)
	Veth(t, p.NetNS, "eth0", c.NetNS, p.Device)
	p.IP("link", "set", "eth0", "address", mac, "mtu", "1400")
	p.IP("addr", "add", address, "dev", "eth0")
	if gateway != "" {
		p.IP("route", "add", "default", "via", gateway)
	}
	c.VSCtl("add-port", "br-int", p.Device, "--", "set", "interface", p.Device, "external_ids:iface-id="+port)
	return p
}

// Installed waits until ovn-controller has the pod's flows.
func (c *Chassis) Installed(t testing.TB, p *Pod) {
	t.Helper()
	Eventually(t, "ovn-installed of "+p.Device, func() bool {
		return strings.Contains(c.VSCtl("get", "interface", p.Device, "external_ids"), `ovn-installed="true"`)
	})
}

// IP runs ip(8) in the pod.
func (p *Pod) IP(args ...string) { Run(p.t, p.NetNS, "ip", args...) }

// Ping reports whether a packet and its answer arrive. source is another address of the pod to send from; empty: its own address.
func (p *Pod) Ping(to, source string) bool {
	args := []string{"-n", "-q", "-c", "1", "-W", "1"}
	if source != "" {
		args = append(args, "-I", source)
	}
	_, err := Try(p.NetNS, "ping", append(args, to)...)
	return err == nil
}

// Reaches waits until Ping succeeds.
func (p *Pod) Reaches(to string) {
	p.t.Helper()
	Eventually(p.t, p.Device+" reaches "+to, func() bool { return p.Ping(to, "") })
}
