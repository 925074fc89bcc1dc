package published

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/nft"
)

func mappings(list ...cni.PortMapping) *cni.Request {
	return &cni.Request{
		Args: cni.Args{PodNamespace: "shop", PodName: "web"}, NetConf: &cni.NetConf{RuntimeConfig: cni.RuntimeConfig{PortMappings: list}},
	}
}

// TestHostPortsRefused: the error names the pod, and what is wrong.
func TestHostPortsRefused(t *testing.T) {
	p := &Publisher{reserved: func(port cni.HostPort) string {
		if port.Port == 9 {
			return "probes"
		}
		return ""
	}}
	four, both := prefixes("10.244.3.7/24"), prefixes("10.244.3.7/24", "fd00:10:244:3::7/64")
	for _, c := range []struct {
		mapping   cni.PortMapping
		addresses []netip.Prefix
		words     string
	}{
		{cni.PortMapping{HostPort: 9, ContainerPort: 80}, four, "reserved for probes"},
		{cni.PortMapping{HostPort: 80, ContainerPort: 80, HostIP: "2001:db8::1"}, four, "it has no address of that family"},
		{cni.PortMapping{HostPort: 80, ContainerPort: 80, HostIP: "2001:db8::1"}, both, ""},
		{cni.PortMapping{HostPort: 80, ContainerPort: 80, HostIP: "::"}, four, "it has no address of that family"},
		{cni.PortMapping{HostPort: 80, ContainerPort: 80, HostIP: "::"}, both, ""},
		{cni.PortMapping{HostPort: 80, ContainerPort: 80, HostIP: "0.0.0.0"}, four, ""},
		{cni.PortMapping{HostPort: 80}, both, "containerPort"},
	} {
		_, err := p.Requested(mappings(c.mapping), c.addresses)
		if c.words == "" && err == nil {
			continue
		}
		if err == nil || c.words == "" || !strings.Contains(err.Error(), c.words) || !strings.Contains(err.Error(), "shop/web") {
			t.Errorf("%+v of a pod with %v: %v, want %q", c.mapping, c.addresses, err, c.words)
		}
	}
}

func prefixes(texts ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, text := range texts {
		out = append(out, netip.MustParsePrefix(text))
	}
	return out
}

// TestHostPortElements: a port at all addresses leads to the pod by both families, and one at an address, or at all of a family, only by
// that family.
func TestHostPortElements(t *testing.T) {
	rec := &attach.Record{PodNamespace: "shop", PodName: "web", Addresses: prefixes("10.244.3.7/24", "fd00:10:244:3::7/64"), HostPorts: []cni.HostPort{
		{Port: 8080, Protocol: "tcp", ContainerPort: 80},
		{Address: netip.MustParseAddr("2001:db8::1"), Port: 53, Protocol: "udp", ContainerPort: 5353},
		{Address: netip.MustParseAddr("192.0.2.1"), Port: 53, Protocol: "udp", ContainerPort: 5354},
		{Address: netip.IPv4Unspecified(), Port: 54, Protocol: "udp", ContainerPort: 5355},
		{Address: netip.IPv6Unspecified(), Port: 54, Protocol: "udp", ContainerPort: 5356},
	}}
	var got []string
	for _, item := range Elements(rec) {
		e, ok := item.(*nft.Element)
		if !ok {
			t.Fatalf("%T", item)
		}
		got = append(got, e.Set+" "+strings.Join(e.Match, " ")+" : "+strings.Join(e.Value, " "))
	}
	slices.Sort(got)
	want := []string{
		"hostports tcp 8080 : 10.244.3.7 80", "hostports udp 54 : 10.244.3.7 5355", "hostports-at 192.0.2.1 udp 53 : 10.244.3.7 5354",
		"hostports6 tcp 8080 : fd00:10:244:3::7 80", "hostports6 udp 54 : fd00:10:244:3::7 5356", "hostports6-at 2001:db8::1 udp 53 : fd00:10:244:3::7 5353",
		"self4 10.244.3.7 10.244.3.7 : ", "self6 fd00:10:244:3::7 fd00:10:244:3::7 : ",
	}
	if !slices.Equal(got, want) {
		t.Errorf("elements\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if rec.HostPorts = nil; Elements(rec) != nil {
		t.Error("a pod without host ports has elements")
	}
}
