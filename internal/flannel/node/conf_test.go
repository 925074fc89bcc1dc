package node

import (
	"encoding/json"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"weft.dev/weft/internal/flannel/daemon"
)

func state() *daemon.State {
	return &daemon.State{
		Networks: [2]netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}, Subnets: [2]netip.Prefix{netip.MustParsePrefix("10.244.3.0/24")},
		MTU: 1450, Masq: true,
	}
}

// TestConfOfManifest: the configuration in flannel's manifest, and no configuration, mean the same.
func TestConfOfManifest(t *testing.T) {
	for _, text := range []string{defaultConflist, ""} {
		c, err := parseConf([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		b, err := c.bridge(state())
		if err != nil {
			t.Fatal(err)
		}
		if b.Name != "cni0" || !b.Gateway || !b.Default || !b.Hairpin || b.MTU != 1450 || b.files.Network != "cbr0" || b.files.DataDir != "/var/lib/cni/networks" {
			t.Errorf("bridge %+v", b)
		}
		if len(b.Routes) != 1 || b.Routes[0].Dst.String() != "10.244.0.0/16" || len(b.Ranges) != 1 || b.gateways()[0].String() != "10.244.3.1/24" {
			t.Errorf("routes %v, ranges %v, gateways %v", b.Routes, b.Ranges, b.gateways())
		}
		data, err := c.conflist(map[string]string{"socket": "/s"})
		if err != nil {
			t.Fatal(err)
		}
		var list struct {
			Name    string
			Plugins []struct {
				Type, Socket string
				Capabilities map[string]bool
			}
		}
		if err := json.Unmarshal(data, &list); err != nil || list.Name != "cbr0" || len(list.Plugins) != 2 ||
			list.Plugins[0].Socket != "/s" || list.Plugins[1].Socket != "" || list.Plugins[1].Type != "portmap" ||
			len(list.Plugins[0].Capabilities) != 0 || !list.Plugins[1].Capabilities["portMappings"] {
			t.Errorf("conflist %s: %v", data, err)
		}
	}
}

// TestConfHostPorts: without another plugin for host ports, the runtime passes them to flannel's.
func TestConfHostPorts(t *testing.T) {
	for text, want := range map[string]bool{
		`{"name":"n","plugins":[{"type":"flannel","capabilities":{"ips":true}},{"type":"portmap"}]}`:                      true,
		`{"name":"n","plugins":[{"type":"flannel"}]}`:                                                                     true,
		`{"name":"n","type":"flannel"}`:                                                                                   true,
		`{"name":"n","plugins":[{"type":"flannel"},{"type":"portmap","snat":true,"capabilities":{"portMappings":true}}]}`: false,
	} {
		c, err := parseConf([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		data, err := c.conflist(nil)
		var list struct {
			Plugins []struct{ Capabilities map[string]bool }
		}
		if err = errors.Join(err, json.Unmarshal(data, &list)); err != nil || list.Plugins[0].Capabilities["portMappings"] != want {
			t.Errorf("%s: conflist %s, %v", text, data, err)
		}
		if strings.Contains(text, "ips") && !list.Plugins[0].Capabilities["ips"] {
			t.Errorf("%s: conflist %s", text, data)
		}
	}
}

// TestConfRefused: the error names what the agent does not support, with the key.
func TestConfRefused(t *testing.T) {
	entry := func(text string) string { return `{"name":"n","plugins":[{"type":"flannel",` + text + `}]}` }
	for text, word := range map[string]string{
		`[]`:                               "not a JSON object",
		`{"name":"n","plugins":[]}`:        "no plugin of type flannel",
		`{"name":"n","plugins":3}`:         "plugins is not a list",
		`{"plugins":[{"type":"flannel"}]}`: "name is missing",
		`{"name":"n","plugins":[{"type":"flannel"},{"type":"flannel"}]}`: "two plugins",
		entry(`"capabilities":["portMappings"]`):                         `capabilities of the plugin "flannel"`,
		entry(`"delegate":{"type":"ptp"}`):                               `delegate.type "ptp"`,
		entry(`"delegate":{"vlan":3}`):                                   "vlan",
		entry(`"delegate":{"mtu":"x"}`):                                  "mtu",
		entry(`"delegate":{"mtu":65536}`):                                "delegate.mtu: 65536 is not from 68 to 65535",
		entry(`"delegate":{"mtu":-1}`):                                   "delegate.mtu: -1",
		entry(`"delegate":{"bridge":"bridge-of-the-pods"}`):              "delegate.bridge: ",
		entry(`"delegate":{"bridge":"a b"}`):                             "delegate.bridge: ",
		entry(`"delegate":{"ipMasq":true}`):                              "delegate.ipMasq",
		entry(`"delegate":{"name":"x"}`):                                 "delegate.name",
		entry(`"ipam":{"type":"dhcp"}`):                                  `ipam.type "dhcp"`,
		entry(`"ipam":{"routes":[{}]}`):                                  "without dst",
	} {
		c, err := parseConf([]byte(text))
		if err == nil {
			_, err = c.bridge(state())
		}
		if err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("%s: error %v, want one that names %q", text, err, word)
		}
	}
}

func FuzzConf(f *testing.F) {
	f.Add([]byte(defaultConflist))
	f.Add([]byte(`{"name":"mynet","type":"flannel"}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := parseConf(text)
		if err != nil {
			return
		}
		if _, err := c.conflist(nil); err != nil {
			t.Errorf("no conflist: %v", err)
		}
		if b, err := c.bridge(state()); err == nil && b.Name == "" {
			t.Error("a bridge without a name")
		}
	})
}
