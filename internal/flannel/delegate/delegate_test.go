package delegate_test

import (
	"encoding/json"
	"strings"
	"testing"

	"weft.dev/weft/internal/flannel/delegate"
	"weft.dev/weft/internal/flannel/subnetenv"
)

const (
	env4    = "FLANNEL_NETWORK=10.1.0.0/16\nFLANNEL_SUBNET=10.1.17.1/24\nFLANNEL_MTU=1400\nFLANNEL_IPMASQ=true\n"
	envDual = "FLANNEL_NETWORK=10.1.0.0/16\nFLANNEL_SUBNET=10.1.17.1/24\nFLANNEL_IPV6_NETWORK=fc00::/48\nFLANNEL_IPV6_SUBNET=fc00::1/64\nFLANNEL_MTU=1400\nFLANNEL_IPMASQ=false\n"
)

// TestCompile compares the delegate's configuration with what flannel's plugin v1.9.1 passes on.
func TestCompile(t *testing.T) {
	for _, c := range []struct{ name, conf, env, want string }{
		{
			"the oldest", `{"name":"mynet","type":"flannel"}`, env4,
			`{"ipMasq":false,"ipam":{"ranges":[[{"subnet":"10.1.17.0/24"}]],"routes":[{"dst":"10.1.0.0/16"}],"type":"host-local"},"isGateway":true,"mtu":1400,"name":"mynet","type":"bridge"}`,
		},
		{
			"kube-flannel.yml", `{"cniVersion":"0.3.1","name":"cbr0","type":"flannel","delegate":{"hairpinMode":true,"isDefaultGateway":true}}`, env4,
			`{"cniVersion":"0.3.1","hairpinMode":true,"ipMasq":false,"ipam":{"ranges":[[{"subnet":"10.1.17.0/24"}]],"routes":[{"dst":"10.1.0.0/16"}],"type":"host-local"},"isDefaultGateway":true,"isGateway":true,"mtu":1400,"name":"cbr0","type":"bridge"}`,
		},
		{
			"given fields are kept", `{"name":"n","cniVersion":"1.1.0","runtimeConfig":{"ips":["10.1.17.9/24"]},"ipam":{"dataDir":"/d","ranges":[],"routes":[{"dst":"0.0.0.0/0","gw":"10.1.17.1"}]},"delegate":{"ipMasq":true,"mtu":900,"isGateway":false,"bridge":"br7"}}`, envDual,
			`{"bridge":"br7","cniVersion":"1.1.0","ipMasq":true,"ipam":{"dataDir":"/d","ranges":[[{"subnet":"10.1.17.0/24"}],[{"subnet":"fc00::/64"}]],"routes":[{"dst":"0.0.0.0/0","gw":"10.1.17.1"},{"dst":"10.1.0.0/16"},{"dst":"fc00::/48"}],"type":"host-local"},"isGateway":false,"mtu":900,"name":"n","runtimeConfig":{"ips":["10.1.17.9/24"]},"type":"bridge"}`,
		},
		{
			"another delegate", `{"name":"n","prevResult":{"x":1},"args":{},"capabilities":{"ips":true},"dns":{},"ipam":{"type":"dhcp"},"delegate":{"type":"macvlan","master":"eth0"}}`, envDual,
			`{"ipMasq":true,"ipam":{"ranges":[[{"subnet":"10.1.17.0/24"}],[{"subnet":"fc00::/64"}]],"routes":[{"dst":"10.1.0.0/16"},{"dst":"fc00::/48"}],"type":"dhcp"},"master":"eth0","mtu":1400,"name":"n","type":"macvlan"}`,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			conf, err := delegate.Parse([]byte(c.conf))
			if err != nil {
				t.Fatal(err)
			}
			env, err := subnetenv.Parse([]byte(c.env))
			if err != nil {
				t.Fatal(err)
			}
			got, err := conf.Compile(&env)
			if err != nil || string(got) != c.want {
				t.Errorf("%v\n got %s\nwant %s", err, got, c.want)
			}
		})
	}
}

func TestParseRefuses(t *testing.T) {
	for _, c := range []struct{ conf, want string }{
		{`{`, "is not valid"},
		{`{"delegate":{"name":"x"}}`, "delegate.name must not be set"},
		{`{"delegate":{"ipam":{}}}`, "delegate.ipam must not be set"},
		{`{"delegate":{"type":7}}`, "delegate.type: 7 is not the name of a plugin"},
		{`{"delegate":{"type":"../bridge"}}`, "delegate.type:"},
		{`{"ipam":{"type":""}}`, "ipam.type:"},
		{`{"ipam":{"routes":{}}}`, "ipam.routes is not a list"},
		{`{"delegate":[]}`, "delegate"},
	} {
		if _, err := delegate.Parse([]byte(c.conf)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.conf, err, c.want)
		}
	}
	absent, err := delegate.Parse([]byte(`{"name":"n"}`))
	if err != nil || absent.ValidAttachments != nil || absent.SubnetFile != "/run/flannel/subnet.env" || absent.DataDir != "/var/lib/cni/flannel" {
		t.Errorf("%+v, %v", absent, err)
	}
	if empty, err := delegate.Parse([]byte(`{"cni.dev/valid-attachments":[]}`)); err != nil || empty.ValidAttachments == nil {
		t.Error("an empty list of attachments reads as none given")
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"name":"cbr0","type":"flannel","delegate":{"hairpinMode":true}}`), []byte(env4))
	f.Add([]byte(`{"ipam":{"routes":[null]},"delegate":{"type":"ptp"}}`), []byte(envDual))
	f.Fuzz(func(t *testing.T, conf, env []byte) {
		c, err := delegate.Parse(conf)
		if err != nil {
			return
		}
		e, err := subnetenv.Parse(env)
		if err != nil {
			return
		}
		out, err := c.Compile(&e)
		if err != nil {
			return
		}
		var back struct{ Name, Type string }
		if err := json.Unmarshal(out, &back); err != nil || back.Type == "" {
			t.Errorf("%s: %v", out, err)
		}
	})
}
