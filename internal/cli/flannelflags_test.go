package cli

import (
	"io"
	"testing"
)

// TestFlannelFlags: without arguments an agent has --ip-masq, and everything else as with an argument, among it the file of WireGuard's
// private key.
func TestFlannelFlags(t *testing.T) {
	environment := Environment{Getenv: func(name string) string { return map[string]string{"WIREGUARD_KEY_FILE": "/keys/node"}[name] }}
	for _, c := range []struct {
		environment Environment
		args        []string
		masq        bool
		key         string
	}{
		{Environment{}, nil, true, "/run/flannel/wgkey"},
		{environment, nil, true, "/keys/node"},
		{environment, []string{"--iface=eth1"}, false, "/keys/node"},
	} {
		f, err := flannelFlags(true, c.args, c.environment, io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		if f.Masq != c.masq || f.WireGuardKeyFile != c.key || !f.Kube.Enabled || f.SubnetFile != "/run/flannel/subnet.env" {
			t.Errorf("%v: %+v", c.args, f)
		}
	}
}
