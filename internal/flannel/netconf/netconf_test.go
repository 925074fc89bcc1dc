package netconf_test

import (
	"encoding/json"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"weft.dev/weft/internal/flannel/netconf"
)

var netValues = cmp.Options{cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })}

func TestParse(t *testing.T) {
	network, network6 := netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("2001:db8:42::/56")
	for _, c := range []struct {
		name, text string
		want       netconf.Config
	}{
		{
			"kube-flannel.yml", `{"Network": "10.244.0.0/16", "EnableNFTables": false, "Backend": {"Type": "vxlan"}}`,
			netconf.Config{EnableIPv4: true, Network: network, Backend: netconf.VXLAN{VNI: 1}},
		},
		{
			"keys in any case, host bits dropped", `{"network":"10.244.3.7/16","ENABLEIPV6":true,"ipv6network":"2001:db8:42::1/56","backend":{"TYPE":"VXLAN","vni":7,"PORT":4789,"mtu":1400,"directrouting":true,"gbp":true,"Learning":true}}`,
			netconf.Config{
				EnableIPv4: true, EnableIPv6: true, Network: network, IPv6Network: network6,
				Backend: netconf.VXLAN{VNI: 7, Port: 4789, MTU: 1400, DirectRouting: true, GBP: true, Learning: true},
			},
		},
		{"no backend", `{"Network":"10.244.0.0/16"}`, netconf.Config{EnableIPv4: true, Network: network, Backend: netconf.VXLAN{VNI: 1}, BackendDefaulted: true}},
		{"unknown keys, null", `{"Network":"10.244.0.0/16","Colour":"red","SubnetLen":null,"Backend":{"Type":"host-gw","x":[]}}`, netconf.Config{EnableIPv4: true, Network: network, Backend: netconf.HostGW{}}},
		{
			"the last of equal keys", `{"Network":"10.0.0.0/8","network":"10.244.0.0/16","Backend":{"Type":"alloc"}}`,
			netconf.Config{EnableIPv4: true, Network: network, Backend: netconf.Alloc{}},
		},
		{
			"wireguard", `{"Network":"10.244.0.0/16","Backend":{"Type":"wireguard"}}`,
			netconf.Config{EnableIPv4: true, Network: network, Backend: netconf.WireGuard{ListenPort: 51820, ListenPort6: 51821, Mode: netconf.ModeSeparate}},
		},
		{
			"extension", `{"Network":"10.244.0.0/16","Backend":{"Type":"extension","SubnetAddCommand":"/opt/add $SUBNET ","PreStartupCommand":" "}}`,
			netconf.Config{EnableIPv4: true, Network: network, Backend: netconf.Extension{SubnetAdd: "/opt/add $SUBNET"}},
		},
		{
			"etcd", `{"Network":"10.244.0.0/16","SubnetLen":24,"SubnetMin":"10.244.10.0","SubnetMax":"10.244.99.0","Backend":{"Type":"ipip","DirectRouting":true}}`,
			netconf.Config{EnableIPv4: true, Network: network, Subnets4: netconf.Subnets{Len: 24, Min: netip.MustParseAddr("10.244.10.0"), Max: netip.MustParseAddr("10.244.99.0")}, Backend: netconf.IPIP{DirectRouting: true}},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := netconf.Parse([]byte(c.text))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got, netValues); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestParseRefuses(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{``, "is not JSON"},
		{`[]`, "is not a JSON object"},
		{`{"Network":"10.244.0.0/16"} {}`, "something follows"},
		{`{"Network":7}`, `Network: 7 is not an IPv4 range such as 10.244.0.0/16`},
		{`{"Network":"2001:db8::/32"}`, `Network: "2001:db8::/32" is not an IPv4 range`},
		{`{"IPv6Network":"10.0.0.0/8"}`, `IPv6Network: "10.0.0.0/8" is not an IPv6 range`},
		{`{"EnableIPv4":"true"}`, `EnableIPv4: "true" is not true or false, without quotes`},
		{`{"EnableIPv4":false}`, "at least one family is needed"},
		{`{"Backend":{}}`, "Backend.Type is missing"},
		{`{"Backend":"vxlan"}`, "Backend is not a JSON object"},
		{`{"Backend":{"Type":"udp"}}`, `use vxlan`},
		{`{"Backend":{"Type":"ipsec"}}`, `use wireguard`},
		{`{"Backend":{"Type":"tencent-vpc"}}`, `use alloc`},
		{`{"Backend":{"Type":"vxlna"}}`, `"vxlna" is unknown: use vxlan`},
		{`{"Backend":{"Type":"vxlan","VNI":16777216}}`, "Backend.VNI: 16777216 is not a whole number from 0 to 16777215"},
		{`{"Backend":{"Type":"vxlan","Port":-1}}`, "Backend.Port: -1 is not"},
		{`{"Backend":{"Type":"vxlan","MTU":100}}`, "Backend.MTU: 100 is too small"},
		{`{"Backend":{"Type":"wireguard","Mode":"both"}}`, `Backend.Mode: "both" is unknown`},
		{`{"Backend":{"Type":"wireguard","Mode":"ipv6"}}`, `Backend.Mode: "ipv6" needs that family to be enabled: use "separate"`},
		{`{"EnableIPv4":false,"EnableIPv6":true,"Backend":{"Type":"wireguard","Mode":"ipv4"}}`, `Backend.Mode: "ipv4" needs`},
		{`{"EnableIPv6":true,"Backend":{"Type":"ipip"}}`, "Backend.Type: ipip carries IPv4 only: set EnableIPv6 to false"},
		{`{"EnableIPv6":true,"Backend":{"Type":"vxlan","VNI":10000}}`, "Backend.VNI: 10000: the name of its device would be too long: at most 9999"},
		{`{"Backend":{"Type":"vxlan","VNI":10000000}}`, "Backend.VNI: 10000000: the name of its device would be too long: at most 9999999"},
		{`{"Backend":{"Type":"wireguard","PSK":"c2VjcmV0"}}`, "Backend.PSK: not a key"},
		{`{"Backend":{"Type":"extension","SubnetAddCommand":"ip route add $SUBNET | tee /tmp/x"}}`, "Backend.SubnetAddCommand: \"|\" needs a shell"},
	} {
		_, err := netconf.Parse([]byte(c.text))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q in it", c.text, err, c.want)
		}
		if err != nil && strings.Contains(err.Error(), "c2VjcmV0") {
			t.Errorf("%s: the error has the secret: %v", c.text, err)
		}
	}
}

func TestEtcd(t *testing.T) {
	for _, c := range []struct{ text, want, wantErr string }{
		{`{"Network":"10.0.0.0/8"}`, "24 10.0.1.0 10.255.255.0", ""},
		{`{"Network":"10.5.0.0/22"}`, "24 10.5.1.0 10.5.3.0", ""},
		{`{"Network":"10.5.0.0/24"}`, "26 10.5.0.64 10.5.0.192", ""},
		{`{"Network":"10.5.0.0/28"}`, "30 10.5.0.4 10.5.0.12", ""},
		{`{"Network":"10.5.0.0/29"}`, "", "the longest that holds four subnets is a /28"},
		{`{"Network":"10.5.0.0/16","SubnetLen":31}`, "", "SubnetLen 31 is too long"},
		{`{"Network":"10.5.0.0/16","SubnetLen":17}`, "", "so at least 18"},
		{`{"Network":"10.5.0.0/16","SubnetMin":"10.6.0.0"}`, "", "SubnetMin 10.6.0.0 is outside Network 10.5.0.0/16"},
		{`{"Network":"10.5.0.0/16","SubnetMax":"10.5.7.9"}`, "", "SubnetMax 10.5.7.9 is not the first address of a /24; 10.5.7.0 is"},
		{`{"Network":"10.5.0.0/16","SubnetMin":"10.5.9.0","SubnetMax":"10.5.7.0"}`, "", "below"},
		{`{}`, "", "Network is missing"},
		{`{"EnableIPv4":false,"EnableIPv6":true}`, "", "IPv6Network is missing"},
	} {
		config, err := netconf.Parse([]byte(c.text))
		if err == nil {
			config, err = config.Etcd()
		}
		if c.wantErr != "" {
			if err == nil || !strings.Contains(err.Error(), c.wantErr) {
				t.Errorf("%s: error %v, want %q in it", c.text, err, c.wantErr)
			}
			continue
		}
		s := config.Subnets4
		if got := strings.Join([]string{jsonText(s.Len), s.Min.String(), s.Max.String()}, " "); err != nil || got != c.want {
			t.Errorf("%s: %s, %v; want %s", c.text, got, err, c.want)
		}
	}
	config, err := netconf.Parse([]byte(`{"EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"2001:db8:42::/48"}`))
	if err != nil {
		t.Fatal(err)
	}
	if config, err = config.Etcd(); err != nil || config.Subnets6.Len != 64 || config.Subnets6.Min.String() != "2001:db8:42:1::" || config.Subnets6.Max.String() != "2001:db8:42:ffff::" {
		t.Errorf("IPv6: %+v, %v", config.Subnets6, err)
	}
}

// TestKubernetesIsNotChecked: flannel does not check SubnetLen if the nodes have the subnets, and real files would fail the check.
func TestKubernetesIsNotChecked(t *testing.T) {
	if _, err := netconf.Parse([]byte(`{"Network":"10.5.0.0/29","SubnetLen":31,"Backend":{"Type":"vxlan"}}`)); err != nil {
		t.Error(err)
	}
}

// TestEtcdSubnetsAreInside compares the defaults with arithmetic on whole ranges.
func TestEtcdSubnetsAreInside(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bits := rapid.IntRange(1, 28).Draw(t, "bits")
		raw := rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, "address")
		network := netip.PrefixFrom(netip.AddrFrom4([4]byte(raw)), bits).Masked()
		c, err := netconf.Config{EnableIPv4: true, Network: network}.Etcd()
		if err != nil {
			t.Fatal(err)
		}
		first := netip.PrefixFrom(c.Subnets4.Min, c.Subnets4.Len)
		if first.Masked() != first || !network.Contains(c.Subnets4.Min) || !network.Contains(c.Subnets4.Max) {
			t.Fatalf("%s: %+v", network, c.Subnets4)
		}
		if before := netip.PrefixFrom(c.Subnets4.Min.Prev(), c.Subnets4.Len).Masked().Addr(); before != network.Addr() {
			t.Fatalf("%s: %s is not the second subnet", network, c.Subnets4.Min)
		}
	})
}

func jsonText(v any) string {
	text, _ := json.Marshal(v)
	return string(text)
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		`{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan","VNI":1}}`, `{"backend":{"type":"wireguard","psk":""}}`,
		`{"EnableIPv6":true,"IPv6Network":"2001:db8::/32","Backend":{"Type":"extension","PreStartupCommand":"a b"}}`, `{`, `{"":{}}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		config, err := netconf.Parse(text)
		if err != nil {
			return
		}
		if config.Backend == nil || (config.Network.IsValid() && config.Network != config.Network.Masked()) {
			t.Errorf("%q: %+v", text, config)
		}
		if _, err := config.Etcd(); err != nil && err.Error() == "" {
			t.Error("an error without words")
		}
	})
}

// The ports of tunnels are those that the backend configures, or the defaults.
func TestTunnelPorts(t *testing.T) {
	for text, want := range map[string][]uint16{
		`{"Network": "10.244.0.0/16"}`:                                                       {8472},
		`{"Network": "10.244.0.0/16", "Backend": {"Type": "vxlan", "Port": 8473}}`:           {8473},
		`{"Network": "10.244.0.0/16", "Backend": {"Type": "wireguard"}}`:                     {51820, 51821},
		`{"Network": "10.244.0.0/16", "Backend": {"Type": "wireguard", "ListenPort": 5000}}`: {5000, 51821},
		`{"Network": "10.244.0.0/16", "Backend": {"Type": "host-gw"}}`:                       nil,
	} {
		c, err := netconf.Parse([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if got := netconf.TunnelPorts(c.Backend); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", text, got, want)
		}
	}
}
