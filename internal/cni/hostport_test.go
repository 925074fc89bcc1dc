package cni

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func parsePorts(t *testing.T, list string) ([]HostPort, error) {
	t.Helper()
	conf, err := ParseNetConf([]byte(`{"cniVersion":"1.0.0","name":"a","runtimeConfig":{"portMappings":` + list + `}}`))
	if err != nil {
		t.Fatal(err)
	}
	return ParsePortMappings(conf.RuntimeConfig.PortMappings, false)
}

func TestParsePortMappings(t *testing.T) {
	got, err := parsePorts(t, `[
		{"hostPort":8080,"containerPort":80,"protocol":"tcp","hostIP":""},
		{"hostPort":8080,"containerPort":80,"protocol":"TCP","hostIP":"0.0.0.0"},
		{"hostPort":8080,"containerPort":81,"hostIP":"192.0.2.1"},
		{"hostPort":53,"containerPort":53,"protocol":"UDP"},
		{"hostPort":9,"containerPort":10,"protocol":"sctp","colour":"red"},
		{"hostPort":0,"containerPort":70000}
	]`)
	if err != nil {
		t.Fatal(err)
	}
	want := []HostPort{
		{Port: 8080, Protocol: "tcp", ContainerPort: 80},
		{Address: netip.MustParseAddr("192.0.2.1"), Port: 8080, Protocol: "tcp", ContainerPort: 81},
		{Port: 53, Protocol: "udp", ContainerPort: 53},
		{Port: 9, Protocol: "sctp", ContainerPort: 10},
	}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if !ValidHostPorts(got) {
		t.Error("what was parsed is not valid")
	}
	six, err := ParsePortMappings([]PortMapping{{HostPort: 80, ContainerPort: 80, HostIP: "2001:db8::1"}, {HostPort: 81, ContainerPort: 80, HostIP: "::"}}, true)
	want = []HostPort{
		{Address: netip.MustParseAddr("2001:db8::1"), Port: 80, Protocol: "tcp", ContainerPort: 80},
		{Address: netip.IPv6Unspecified(), Port: 81, Protocol: "tcp", ContainerPort: 80},
	}
	if diff := cmp.Diff(want, six, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" || err != nil || !ValidHostPorts(six) {
		t.Errorf("IPv6: -want +got, %v:\n%s", err, diff)
	}
	if got, err := parsePorts(t, `null`); len(got) != 0 || err != nil {
		t.Errorf("none: %v, %v", got, err)
	}
}

func TestParsePortMappingsRefused(t *testing.T) {
	for list, want := range map[string]struct {
		code Code
		part string
	}{
		`[{"hostPort":-1,"containerPort":80}]`:                                           {CodeInvalidConfig, "portMappings[0].hostPort: -1"},
		`[{"hostPort":0},{"hostPort":65536,"containerPort":80}]`:                         {CodeInvalidConfig, "portMappings[1].hostPort: 65536"},
		`[{"hostPort":80}]`:                                                              {CodeInvalidConfig, "portMappings[0].containerPort: 0"},
		`[{"hostPort":80,"containerPort":65616}]`:                                        {CodeInvalidConfig, "containerPort: 65616"},
		`[{"hostPort":80,"containerPort":80,"protocol":"icmp"}]`:                         {CodeInvalidConfig, `protocol: "icmp"`},
		`[{"hostPort":80,"containerPort":80,"hostIP":"node"}]`:                           {CodeInvalidConfig, `hostIP: "node"`},
		`[{"hostPort":80,"containerPort":80,"hostIP":"127.0.0.53"}]`:                     {CodeUnsupportedField, "hostIP: 127.0.0.53: of the loopback range"},
		`[{"hostPort":80,"containerPort":80,"hostIP":"::1"}]`:                            {CodeUnsupportedField, "hostIP: ::1"},
		`[{"hostPort":80,"containerPort":80,"hostIP":"::ffff:192.0.2.1"}]`:               {CodeUnsupportedField, "hostIP: ::ffff:192.0.2.1"},
		`[{"hostPort":80,"containerPort":80},{"hostPort":80,"containerPort":81}]`:        {CodeInvalidConfig, "portMappings[1]: host port 80/tcp leads to container port 80"},
		`[` + strings.Repeat(`{"hostPort":0},`, 5) + `{"hostPort":1,"protocol":"tcp;"}]`: {CodeInvalidConfig, "portMappings[5].protocol"},
	} {
		_, err := parsePorts(t, list)
		wantError(t, err, want.code, want.part)
	}
	for text, want := range map[string]string{"::1": "of the loopback range", "::ffff:192.0.2.1": "an IPv4 address as 192.0.2.1", "fe80::1%eth0": "without a zone"} {
		_, err := ParsePortMappings([]PortMapping{{HostPort: 80, ContainerPort: 80, HostIP: text}}, true)
		wantError(t, err, CodeUnsupportedField, want)
	}
	for _, pair := range [][2]string{{"", "0.0.0.0"}, {"::", ""}, {"0.0.0.0", "0.0.0.0"}} {
		both := []PortMapping{{HostPort: 80, ContainerPort: 80, HostIP: pair[0]}, {HostPort: 80, ContainerPort: 81, HostIP: pair[1]}}
		_, err := ParsePortMappings(both, true)
		wantError(t, err, CodeInvalidConfig, "leads to container port 80 already")
	}
	for _, pair := range [][2]string{{"::", "0.0.0.0"}, {"0.0.0.0", "192.0.2.1"}, {"192.0.2.1", ""}} {
		both := []PortMapping{{HostPort: 80, ContainerPort: 80, HostIP: pair[0]}, {HostPort: 80, ContainerPort: 81, HostIP: pair[1]}}
		if list, err := ParsePortMappings(both, true); err != nil || !ValidHostPorts(list) {
			t.Errorf("%q: %v, %v", pair, list, err)
		}
	}
	many := make([]PortMapping, maxHostPorts+1)
	for i := range many {
		many[i] = PortMapping{HostPort: i + 1, ContainerPort: 1}
	}
	_, err := ParsePortMappings(many, false)
	wantError(t, err, CodeInvalidConfig, "at most 512 host ports")
	if _, err := ParsePortMappings(many[1:], false); err != nil {
		t.Error(err)
	}
}

// A pod with port mappings that ADD refuses can be deleted.
func TestBadPortMappingsAreNoMatterOfDel(t *testing.T) {
	req := sampleRequest()
	req.Command, req.Config = CommandDel, []byte(`{"cniVersion":"1.0.0","name":"a","runtimeConfig":{"portMappings":[{"hostPort":-1}]}}`)
	if err := req.Validate(); err != nil {
		t.Error(err)
	}
}

func TestHostPortsOverlap(t *testing.T) {
	one, other := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	tcp := func(address netip.Addr, port uint16) HostPort {
		return HostPort{Address: address, Port: port, Protocol: "tcp"}
	}
	all, all4, all6, one6 := netip.Addr{}, netip.IPv4Unspecified(), netip.IPv6Unspecified(), netip.MustParseAddr("2001:db8::1")
	for _, c := range []struct {
		a, b HostPort
		want bool
	}{
		{tcp(all, 80), tcp(all, 80), true},
		{tcp(all, 80), tcp(one, 80), true},
		{tcp(one, 80), tcp(one, 80), true},
		{tcp(one, 80), tcp(other, 80), false},
		{tcp(all, 80), tcp(all, 81), false},
		{tcp(all, 80), HostPort{Port: 80, Protocol: "udp"}, false},
		{tcp(all, 80), tcp(all4, 80), true},
		{tcp(all, 80), tcp(all6, 80), true},
		{tcp(all4, 80), tcp(one, 80), true},
		{tcp(all6, 80), tcp(one6, 80), true},
		{tcp(all4, 80), tcp(all6, 80), false},
		{tcp(all4, 80), tcp(one6, 80), false},
		{tcp(all6, 80), tcp(one, 80), false},
	} {
		if got := c.a.Overlaps(c.b); got != c.want || c.b.Overlaps(c.a) != got {
			t.Errorf("%s and %s overlap: %t", c.a, c.b, got)
		}
	}
}

// Whatever a runtime passes: a parsed mapping is valid, and every other one has an error for the runtime.
func FuzzParsePortMappings(f *testing.F) {
	f.Add(8080, 80, "tcp", "", 8080, 81, "TCP", "192.0.2.1")
	f.Add(53, 53, "udp", "2001:db8::1", 53, 5353, "udp", "::")
	f.Add(0, 0, "", "0.0.0.0", -1, 1<<20, "sctp\n", "::1%eth0")
	f.Fuzz(func(t *testing.T, hostA, podA int, protocolA, ipA string, hostB, podB int, protocolB, ipB string) {
		for _, ipv6 := range []bool{false, true} {
			list, err := ParsePortMappings([]PortMapping{{hostA, podA, protocolA, ipA}, {hostB, podB, protocolB, ipB}}, ipv6)
			switch {
			case err == nil && !ValidHostPorts(list):
				t.Fatalf("not valid: %v", list)
			case err != nil && !strings.Contains(AsError(err).Msg, "portMappings["):
				t.Fatalf("the error names no field: %v", err)
			}
		}
	})
}
