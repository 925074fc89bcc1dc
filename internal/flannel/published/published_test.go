package published

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/hostport"
	"weft.dev/weft/internal/nft"
)

func addresses(texts ...string) []netip.Addr {
	var out []netip.Addr
	for _, text := range texts {
		out = append(out, netip.MustParseAddr(text))
	}
	return out
}

// TestHostPortElements: a port at all addresses leads to the pod by both families, and one at an address, or at all of a family, only by
// that family.
func TestHostPortElements(t *testing.T) {
	pod := &hostport.Published{Pod: "shop/web", Addresses: addresses("10.244.3.7", "fd00:10:244:3::7"), Ports: []cni.HostPort{
		{Port: 8080, Protocol: "tcp", ContainerPort: 80},
		{Address: netip.MustParseAddr("2001:db8::1"), Port: 53, Protocol: "udp", ContainerPort: 5353},
		{Address: netip.MustParseAddr("192.0.2.1"), Port: 53, Protocol: "udp", ContainerPort: 5354},
		{Address: netip.IPv4Unspecified(), Port: 54, Protocol: "udp", ContainerPort: 5355},
		{Address: netip.IPv6Unspecified(), Port: 54, Protocol: "udp", ContainerPort: 5356},
	}}
	var got []string
	for _, item := range Elements(pod) {
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
}
