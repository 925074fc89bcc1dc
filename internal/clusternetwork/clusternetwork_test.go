package clusternetwork

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/internal/ipam"
)

func pfx(text string) netip.Prefix { return netip.MustParsePrefix(text) }

func object(change func(*networkv1.ClusterNetwork)) *networkv1.ClusterNetwork {
	obj := &networkv1.ClusterNetwork{
		ObjectMeta:      metav1.ObjectMeta{Name: "default"},
		ServiceNetwork:  "172.30.0.0/16",
		PluginName:      "redhat/openshift-ovs-subnet",
		ClusterNetworks: []networkv1.ClusterNetworkEntry{{CIDR: "10.128.0.0/14", HostSubnetLength: 9}},
	}
	if change != nil {
		change(obj)
	}
	return obj
}

var equate = cmpopts.EquateComparable(netip.Prefix{}, netip.Addr{}) //nolint:gochecknoglobals // constant

func TestParse(t *testing.T) {
	base := Config{
		ClusterNetworks: []ipam.Range{{Prefix: pfx("10.128.0.0/14"), HostBits: 9}},
		ServiceNetwork:  pfx("172.30.0.0/16"), VXLANPort: 4789, Mode: ModeSubnet,
	}
	with := func(change func(*Config)) Config {
		c := base
		change(&c)
		return c
	}
	for _, test := range []struct {
		name   string
		change func(*networkv1.ClusterNetwork)
		want   Config
	}{
		{"defaults", nil, base},
		{"old form", func(o *networkv1.ClusterNetwork) {
			o.ClusterNetworks, o.Network, o.HostSubnetLength = nil, "10.128.0.0/14", 9
		}, base},
		{"both forms", func(o *networkv1.ClusterNetwork) { o.Network, o.HostSubnetLength = "10.128.0.0/14", 9 }, base},
		{
			"port and MTU", func(o *networkv1.ClusterNetwork) { o.VXLANPort, o.MTU = new(uint32(4790)), new(uint32(8950)) },
			with(func(c *Config) { c.VXLANPort, c.MTU = 4790, 8950 }),
		},
		{
			"capitals", func(o *networkv1.ClusterNetwork) { o.PluginName = "Redhat/OpenShift-OVS-Multitenant" },
			with(func(c *Config) { c.Mode = ModeMultitenant }),
		},
		{"no plugin", func(o *networkv1.ClusterNetwork) { o.PluginName = "" }, with(func(c *Config) { c.Mode = ModeNetworkPolicy })},
	} {
		got, err := Parse(object(test.change))
		if err != nil {
			t.Errorf("%s: %v", test.name, err)
		}
		if diff := cmp.Diff(test.want, got, equate); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.name, diff)
		}
	}
}

// OpenShift SDN refused a ClusterNetwork with only one of the old fields.
func TestParseHalfOfTheOldForm(t *testing.T) {
	for want, change := range map[string]func(*networkv1.ClusterNetwork){
		"hostsubnetlength: Required": func(o *networkv1.ClusterNetwork) { o.Network = "10.128.0.0/14" },
		"network: Required":          func(o *networkv1.ClusterNetwork) { o.HostSubnetLength = 9 },
	} {
		if _, err := Parse(object(change)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

func TestParseReportsAllErrors(t *testing.T) {
	_, err := Parse(object(func(o *networkv1.ClusterNetwork) {
		o.Network, o.HostSubnetLength = "10.0.0.0/8", 8
		o.ServiceNetwork = "10.129.0.0/16"
		o.PluginName = "weave"
		o.VXLANPort, o.MTU = new(uint32(0)), new(uint32(100))
		o.ClusterNetworks = append(o.ClusterNetworks,
			networkv1.ClusterNetworkEntry{CIDR: "10.131.0.0/16", HostSubnetLength: 17},
			networkv1.ClusterNetworkEntry{CIDR: "10.1.2.0/16", HostSubnetLength: 1},
			networkv1.ClusterNetworkEntry{CIDR: "fd00::/48", HostSubnetLength: 9},
			networkv1.ClusterNetworkEntry{CIDR: strings.Repeat("9", 5000), HostSubnetLength: 9},
			networkv1.ClusterNetworkEntry{CIDR: "10.2.0.0/31", HostSubnetLength: 2},
			networkv1.ClusterNetworkEntry{},
		)
	}))
	if err == nil {
		t.Fatal("accepted")
	}
	for _, want := range []string{
		`ClusterNetwork "default": `,
		`network: Invalid value: "10.0.0.0/8": leave it out, or set it to clusterNetworks[0].CIDR, 10.128.0.0/14`,
		`hostsubnetlength: Invalid value: 8: leave it out, or set it to clusterNetworks[0].hostSubnetLength, 9`,
		`pluginName: Unsupported value: "weave": supported values: `,
		`vxlanPort: Invalid value: 0: must be a UDP port, 1 to 65535`,
		`mtu: Invalid value: 100: must be 576 to 65536 bytes`,
		`clusterNetworks[0].CIDR: Invalid value: "10.128.0.0/14": overlaps serviceNetwork, 10.129.0.0/16`,
		`clusterNetworks[1].CIDR: Invalid value: "10.131.0.0/16": overlaps clusterNetworks[0].CIDR, 10.128.0.0/14`,
		`clusterNetworks[1].hostSubnetLength: Invalid value: 17: must be 2 to 16`,
		`clusterNetworks[2].CIDR: Invalid value: "10.1.2.0/16": has bits set after its prefix: write 10.1.0.0/16`,
		`clusterNetworks[2].hostSubnetLength: Invalid value: 1: must be 2 to 16`,
		`clusterNetworks[3].CIDR: Invalid value: "fd00::/48": must be an IPv4 range`,
		`clusterNetworks[4].CIDR: Invalid value: "9999`,
		`clusterNetworks[5].hostSubnetLength: Invalid value: 2: range 10.2.0.0/31 is too small for any subnet`,
		`clusterNetworks[6].CIDR: Invalid value: "": must be an IPv4 range`,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not said in:\n%v", want, err)
		}
	}
	if len(err.Error()) > 4000 {
		t.Errorf("the error has %d bytes", len(err.Error()))
	}
	if _, err := Parse(&networkv1.ClusterNetwork{}); err == nil || !strings.Contains(err.Error(), "clusterNetworks: Required value") {
		t.Errorf("empty: %v", err)
	}
}

func TestChecks(t *testing.T) {
	config, err := Parse(object(nil))
	if err != nil {
		t.Fatal(err)
	}
	for text, good := range map[string]bool{"192.0.2.1": true, "10.129.0.1": false, "172.30.255.1": false} {
		if err := config.CheckNode(netip.MustParseAddr(text)); (err == nil) != good {
			t.Errorf("node %s: %v", text, err)
		}
	}
	err = config.CheckHost([]InterfaceAddress{{"eth0", pfx("192.0.2.1/24")}, {"eth1", pfx("10.131.9.1/24")}, {"br-x", pfx("172.16.0.1/12")}})
	if err == nil || !strings.Contains(err.Error(), "10.131.9.0/24, the network of interface eth1") ||
		!strings.Contains(err.Error(), "serviceNetwork") || strings.Contains(err.Error(), "eth0") {
		t.Errorf("host: %v", err)
	}
	if !config.Contains(pfx("10.131.2.0/23")) || config.Contains(pfx("10.0.0.0/8")) || config.Contains(pfx("10.132.0.0/23")) {
		t.Error("Contains is wrong")
	}
}

func TestParseHostSubnet(t *testing.T) {
	makeOne := func(hostIP, subnet string, annotations map[string]string) *networkv1.HostSubnet {
		return &networkv1.HostSubnet{
			ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "u", Annotations: annotations}, Host: "a", HostIP: hostIP, Subnet: subnet,
		}
	}
	got, err := ParseHostSubnet(makeOne("192.0.2.1", "10.128.0.0/23", map[string]string{
		networkv1.AnnotationNodeUID: "n", networkv1.AnnotationFixedVNID: "16777215",
	}))
	want := HostSubnet{UID: "u", Host: "a", HostIP: netip.MustParseAddr("192.0.2.1"), Subnet: pfx("10.128.0.0/23"), VNID: 1<<24 - 1, NodeUID: "n"}
	if diff := cmp.Diff(want, got, equate); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if got, err := ParseHostSubnet(makeOne("192.0.2.1", "", map[string]string{networkv1.AnnotationAssignSubnet: ""})); err != nil || got.Subnet.IsValid() {
		t.Errorf("waiting for a subnet: %v, %v", got, err)
	}
	for name, bad := range map[string]*networkv1.HostSubnet{
		"hostIP: Required":               makeOne("", "10.128.0.0/23", nil),
		"hostIP: Invalid":                makeOne("127.0.0.1", "10.128.0.0/23", nil),
		"must be an IPv4 address":        makeOne("fd00::1", "10.128.0.0/23", nil),
		"subnet: Invalid value: \"\"":    makeOne("192.0.2.1", "", nil),
		"write 10.128.0.0/23":            makeOne("192.0.2.1", "10.128.1.0/23", nil),
		"there is no address for a pod":  makeOne("192.0.2.1", "10.128.1.0/31", nil),
		"must be a VNID":                 makeOne("192.0.2.1", "10.128.0.0/23", map[string]string{networkv1.AnnotationFixedVNID: "-1"}),
		"a number from 0 to 16777215":    makeOne("192.0.2.1", "10.128.0.0/23", map[string]string{networkv1.AnnotationFixedVNID: "16777216"}),
		"host: Invalid value: \"other\"": {ObjectMeta: metav1.ObjectMeta{Name: "a"}, Host: "other", HostIP: "192.0.2.1", Subnet: "10.128.0.0/23"},
	} {
		if _, err := ParseHostSubnet(bad); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// For any object: no panic, and accepted values are canonical and fit.
func FuzzParse(f *testing.F) {
	f.Add("10.128.0.0/14", uint32(9), "172.30.0.0/16", "redhat/openshift-ovs-subnet")
	f.Add("10.1.2.3/16", uint32(0), "::/0", "")
	f.Add("00.0.0.0/0", uint32(30), "0.0.0.0/32", "x")
	f.Add("::ffff:10.0.0.0/104", uint32(8), "10.0.0.0/-1", "\n")
	f.Fuzz(func(t *testing.T, cidr string, length uint32, service, plugin string) {
		config, err := Parse(object(func(o *networkv1.ClusterNetwork) {
			o.ClusterNetworks = []networkv1.ClusterNetworkEntry{{CIDR: cidr, HostSubnetLength: length}}
			o.ServiceNetwork, o.PluginName = service, plugin
		}))
		if err != nil {
			return
		}
		r := config.ClusterNetworks[0]
		if r.Validate() != nil || r.Prefix.String() != cidr || r.Prefix.Overlaps(config.ServiceNetwork) || config.Mode == "" {
			t.Fatalf("accepted %+v", config)
		}
		if _, err := ipam.NewNodeSubnets(config.ClusterNetworks); err != nil {
			t.Fatal(err)
		}
	})
}

// For any object and annotations: no panic, and accepted values are an address that a host can have, a canonical range with room for a pod,
// and a VNID.
func FuzzParseHostSubnet(f *testing.F) {
	f.Add("n1", "192.0.2.1", "10.128.0.0/23", "", "5")
	f.Add("a", "127.0.0.1", "10.128.0.1/23", "true", "-1")
	f.Add("", "::1", "", "true", "16777216")
	f.Add("n1", "010.0.0.1", "0.0.0.0/0", "", "0x10")
	f.Fuzz(func(t *testing.T, host, hostIP, subnet, assign, vnid string) {
		obj := &networkv1.HostSubnet{ObjectMeta: metav1.ObjectMeta{Name: "n1", Annotations: map[string]string{}}, Host: host, HostIP: hostIP, Subnet: subnet}
		if assign != "" {
			obj.Annotations[networkv1.AnnotationAssignSubnet] = assign
		}
		if vnid != "" {
			obj.Annotations[networkv1.AnnotationFixedVNID] = vnid
		}
		parsed, err := ParseHostSubnet(obj)
		if err != nil {
			return
		}
		if !parsed.HostIP.Is4() || parsed.HostIP.IsLoopback() || parsed.HostIP.IsUnspecified() || parsed.HostIP.String() != hostIP {
			t.Errorf("accepted hostIP %q", hostIP)
		}
		if parsed.Subnet.IsValid() && (parsed.Subnet.Masked().String() != subnet || parsed.Subnet.Bits() > 30) {
			t.Errorf("accepted subnet %q", subnet)
		}
		if !parsed.Subnet.IsValid() && (subnet != "" || assign == "") {
			t.Errorf("no subnet of %q", subnet)
		}
		if parsed.VNID > networkv1.VNIDMax || (vnid == "" && parsed.VNID != 0) {
			t.Errorf("accepted VNID %q", vnid)
		}
	})
}
