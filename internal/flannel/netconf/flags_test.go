package netconf_test

import (
	"io"
	"strings"
	"testing"

	"weft.dev/weft/internal/flannel/netconf"
)

func flags(env map[string]string, args ...string) (*netconf.Flags, error) {
	return netconf.ParseFlags(args, func(name string) string { return env[name] }, io.Discard)
}

func TestFlags(t *testing.T) {
	f, err := flags(nil)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Join(f.Etcd.Endpoints, " ") != "http://127.0.0.1:4001 http://127.0.0.1:2379" || f.Etcd.Prefix != "/coreos.com/network" || f.Masq || !f.Forward ||
		f.SubnetFile != "/run/flannel/subnet.env" || f.Kube.NetConfPath != "/etc/kube-flannel/net-conf.json" || !f.Kube.Condition || f.HealthPort != 0 {
		t.Errorf("defaults: %+v", f)
	}
	f, err = flags(map[string]string{
		"FLANNELD_IFACE": "eth9", "FLANNELD_IP_MASQ": "true", "FLANNELD_HEALTHZ_PORT": "", "FLANNELD_KUBE_SUBNET_MGR": "true", "FLANNELD_PUBLIC_IP": "192.0.2.1",
	}, "-iface=eth0", "--iface", "eth1", "--kube-subnet-mgr=false", "--iptables-resync=7")
	if err != nil || strings.Join(f.Iface.Names, " ") != "eth0 eth1" || !f.Masq || f.Kube.Enabled || f.Iface.Public.String() != "192.0.2.1" || len(f.Unused) != 1 {
		t.Errorf("command line before environment, empty ones ignored: %+v, %v", f, err)
	}
}

// TestHealthAddress: as with flanneld, the address may be empty, for all addresses, or a name.
func TestHealthAddress(t *testing.T) {
	for _, address := range []string{"", "localhost", "0.0.0.0"} {
		if f, err := flags(nil, "--healthz-ip="+address, "--healthz-port=8081"); err != nil || f.HealthIP != address {
			t.Errorf("%q: %v", address, err)
		}
	}
}

func TestFlagsRefuses(t *testing.T) {
	for _, c := range []struct {
		env  map[string]string
		args []string
		want string
	}{
		{nil, []string{"--subnet-lease-renew-margin=1440"}, "it is from 1 to 1439 minutes"},
		{nil, []string{"--public-ip=2001:db8::1"}, "--public-ip=2001:db8::1: it is an address of the right family"},
		{nil, []string{"--iface-regex=("}, "--iface-regex=("},
		{nil, []string{"--etcd-keyfile=/k"}, "belong together"},
		{nil, []string{"--nonsense"}, "nonsense"},
		{nil, []string{"eth0"}, `argument "eth0" is not a flag`},
		{map[string]string{"FLANNELD_HEALTHZ_PORT": "x"}, nil, `environment variable FLANNELD_HEALTHZ_PORT="x"`},
		{nil, []string{"--etcd-endpoints="}, "--etcd-endpoints is empty"},
	} {
		if _, err := flags(c.env, c.args...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v, want %q", c.args, err, c.want)
		}
	}
}
