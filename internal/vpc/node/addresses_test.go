package node

import (
	"strings"
	"testing"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
)

// No pod is attached with an address that is not one of IPv4; the error says what to do.
func TestAddressOf(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*kubeovn.IPSpec)
		want   string // in the error; empty: there is none
	}{
		"IPv4":            {func(*kubeovn.IPSpec) {}, ""},
		"IPv6":            {func(s *kubeovn.IPSpec) { s.V4IPAddress = "fd00::1" }, "spec.v4IpAddress"},
		"mapped":          {func(s *kubeovn.IPSpec) { s.V4IPAddress = "::ffff:1.2.3.4" }, "spec.v4IpAddress"},
		"none":            {func(s *kubeovn.IPSpec) { s.V4IPAddress = "" }, "spec.v4IpAddress"},
		"range of IPv6":   {func(s *kubeovn.IPSpec) { s.CIDR = "fd00::/64" }, "fd00::/64"},
		"no range":        {func(s *kubeovn.IPSpec) { s.CIDR = "10.0.1.0" }, "10.0.1.0"},
		"gateway of IPv6": {func(s *kubeovn.IPSpec) { s.Gateway = "fd00::1" }, "spec.gateway"},
	} {
		t.Run(name, func(t *testing.T) {
			ip := &kubeovn.IP{Spec: kubeovn.IPSpec{V4IPAddress: "10.0.1.2", CIDR: "10.0.1.0/24", Gateway: "10.0.1.1"}}
			c.change(&ip.Spec)
			have, err := addressOf(ip)
			switch {
			case c.want == "" && (err != nil || have.Prefix.String() != "10.0.1.2/24" || have.Gateway.String() != "10.0.1.1"):
				t.Errorf("%+v, %v", have, err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "delete the IP object")):
				t.Errorf("%v, want an error with %q", err, c.want)
			}
		})
	}
}
