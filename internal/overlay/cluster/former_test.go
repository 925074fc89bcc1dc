package cluster

import (
	"net/netip"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	networkv1 "weft.dev/weft/api/openshift/v1"
)

// The last subnet of a removed host is kept until another host has it.
func TestFormerSubnets(t *testing.T) {
	have := func(name, subnet string) networkv1.HostSubnet {
		return networkv1.HostSubnet{ObjectMeta: metav1.ObjectMeta{Name: name}, Subnet: subnet}
	}
	f := formerSubnets{}
	f.see([]networkv1.HostSubnet{have("a", "10.128.0.0/23"), have("b", "10.129.0.0/23"), have("odd", "nonsense"), have("new", "")})
	f.see([]networkv1.HostSubnet{have("b", "10.129.0.0/23")})
	if f["a"] != netip.MustParsePrefix("10.128.0.0/23") || len(f) != 2 {
		t.Errorf("remembered %v", f)
	}
	f.see([]networkv1.HostSubnet{have("b", "10.129.0.0/23"), have("c", "10.128.0.0/23")})
	if _, still := f["a"]; still || len(f) != 2 {
		t.Errorf("remembered %v", f)
	}
}
