package host

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/goldentest"
	"weft.dev/weft/internal/hostport"
	"weft.dev/weft/internal/nft"
)

// sample is the rules of a node with a pod that has host ports, and a Service.
func sample() map[nft.Key]nft.Item {
	all := Rules([]uint16{4789, 6081})
	maps.Copy(all, Published(&hostport.Published{Pod: "blue/a", Addresses: []netip.Addr{netip.MustParseAddr("10.244.0.5")}, Ports: []cni.HostPort{
		{Port: 8080, Protocol: "tcp", ContainerPort: 80},
		{Address: netip.MustParseAddr("192.0.2.1"), Port: 53, Protocol: "udp", ContainerPort: 5353},
	}}))
	maps.Copy(all, Service([]netip.Addr{netip.MustParseAddr("10.96.0.9"), netip.MustParseAddr("fd00::9")}))
	return all
}

func TestRules(t *testing.T) {
	var all []string
	for _, item := range sample() {
		all = append(all, item.String())
	}
	slices.Sort(all)
	goldentest.Compare(t, "testdata/rules.golden", strings.Join(all, "\n")+"\n")
}
