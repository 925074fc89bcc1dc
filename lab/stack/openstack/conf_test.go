package openstack

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"weft.dev/weft/lab/plan"
)

// Each driver's configuration has what that driver needs and nothing of the other's.
func TestDrivers(t *testing.T) {
	ovn := []string{"mechanism_drivers = ovn", "tenant_network_types = geneve", "transport_url = fake://", "rpc_state_report_workers = 0", "[ovn]"}
	openvswitch := []string{
		"mechanism_drivers = openvswitch,l2population", "tenant_network_types = vxlan", "transport_url = rabbit://guest:guest@127.0.0.1:5672/",
		"rpc_state_report_workers = 1", "service_plugins = router",
	}
	for driver, want := range map[string]struct{ has, lacks []string }{
		plan.OpenStackOVN: {ovn, openvswitch}, plan.OpenStackOpenVSwitch: {openvswitch, ovn},
	} {
		t.Run(driver, func(t *testing.T) {
			s := &Stack{Dir: t.TempDir(), Driver: driver}
			if err := (view{s}).write(); err != nil {
				t.Fatal(err)
			}
			lines := linesOf(t, filepath.Join(s.Dir, "conf", "neutron.conf"))
			for _, line := range want.has {
				if !slices.Contains(lines, line) {
					t.Errorf("neutron.conf has no line %q", line)
				}
			}
			for _, line := range want.lacks {
				if slices.Contains(lines, line) {
					t.Errorf("neutron.conf has line %q", line)
				}
			}
		})
	}
}

// The agents of a node have its name, the address of its tunnels, and the broker's address.
func TestAgents(t *testing.T) {
	h := host{
		&Stack{Dir: t.TempDir(), Driver: plan.OpenStackOpenVSwitch, Addr: netip.MustParseAddr("172.31.0.249")},
		HostConfig{Node: plan.Node{Name: "n1", IP: netip.MustParseAddr("172.31.0.1")}, Datapath: plan.DatapathNetdev},
	}
	file, err := h.write()
	if err != nil {
		t.Fatal(err)
	}
	lines := linesOf(t, file)
	for _, line := range []string{
		"host = n1", "local_ip = 172.31.0.1", "transport_url = rabbit://guest:guest@172.31.0.249:5672/", "datapath_type = netdev",
		"bridge_mappings = physnet1:br-ex", "firewall_driver = openvswitch",
	} {
		if !slices.Contains(lines, line) {
			t.Errorf("the agents' configuration has no line %q", line)
		}
	}
}

func linesOf(t *testing.T, file string) []string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(string(text), "\n")
}
