package objects

import (
	"encoding/json"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/networks"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/subnets"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	stackubev1 "weft.dev/weft/api/stackube/v1"
	"weft.dev/weft/internal/neutron/cloud"
)

func balanced(change func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "blue", Name: "web", UID: "u1"}, Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeLoadBalancer, SessionAffinity: corev1.ServiceAffinityClientIP,
		Ports: []corev1.ServicePort{{Name: "http", Port: 80}, {Name: "dns", Port: 53, Protocol: corev1.ProtocolUDP}},
	}}
	if change != nil {
		change(s)
	}
	return s
}

func subnetOf() *cloud.HeldNetwork {
	return &cloud.HeldNetwork{Network: networks.Network{ID: "net"}, Held: []subnets.Subnet{{
		ID: "v4", Name: "a", IPVersion: 4, CIDR: "10.244.0.0/16", AllocationPools: []subnets.AllocationPool{{Start: "10.244.0.2", End: "10.244.255.254"}},
	}}}
}

// Each port is a listener with the endpoints that are ready and in the subnet; the external address is the one that the Service names.
func TestBalancer(t *testing.T) {
	ready, not := true, false
	web, dns := int32(8080), int32(5353)
	tcp, udp := corev1.ProtocolTCP, corev1.ProtocolUDP
	all := []discoveryv1.EndpointSlice{
		{
			AddressType: discoveryv1.AddressTypeIPv4,
			Ports: []discoveryv1.EndpointPort{
				{Name: new("http"), Port: &web, Protocol: &tcp}, {Name: new("dns"), Port: &dns, Protocol: &udp},
			},
			Endpoints: []discoveryv1.Endpoint{
				{Addresses: []string{"10.244.0.9"}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}},
				{Addresses: []string{"10.244.0.5"}},
				{Addresses: []string{"10.244.0.6"}, Conditions: discoveryv1.EndpointConditions{Ready: &not}},
				{Addresses: []string{"10.128.0.5"}},
			},
		},
		{AddressType: discoveryv1.AddressTypeIPv6, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"fd00::5"}}}},
	}
	member := func(addr string, port int) cloud.Member {
		return cloud.Member{Addr: netip.MustParseAddr(addr), Port: port}
	}
	want := cloud.Balancer{
		Owner: "service/u1", Name: "stackube_blue_web", Project: "p", Subnet: "v4", SourceAffinity: true, AnyFloating: true,
		FloatingIP: netip.MustParseAddr("192.0.2.7"),
		Listeners: []cloud.Listener{
			{Protocol: "TCP", Port: 80, Members: []cloud.Member{member("10.244.0.5", 8080), member("10.244.0.9", 8080)}},
			{Protocol: "UDP", Port: 53, Members: []cloud.Member{member("10.244.0.5", 5353), member("10.244.0.9", 5353)}},
		},
	}
	got, err := Balancer(balanced(func(s *corev1.Service) { s.Spec.ExternalIPs = []string{"192.0.2.7"} }), all, &stackubev1.Network{Spec: stackubev1.NetworkSpec{NetworkID: "net"}}, subnetOf(), "p")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Error(diff)
	}
	for field, change := range map[string]func(*corev1.Service){
		"spec.externalIPs":       func(s *corev1.Service) { s.Spec.ExternalIPs = []string{"192.0.2.7", "192.0.2.8"} },
		"spec.externalIPs[0]":    func(s *corev1.Service) { s.Spec.ExternalIPs = []string{"fd00::1"} },
		"spec.loadBalancerIP":    func(s *corev1.Service) { s.Spec.LoadBalancerIP = "outside" },
		"spec.ports[1].protocol": func(s *corev1.Service) { s.Spec.Ports[1].Protocol = "ICMP" },
	} {
		if _, err := Balancer(balanced(change), all, &stackubev1.Network{Spec: stackubev1.NetworkSpec{NetworkID: "net"}}, subnetOf(), "p"); err == nil || !strings.HasPrefix(err.Error(), field) {
			t.Errorf("%s: error %v", field, err)
		}
	}
}

func TestBalanced(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*corev1.Service)
		want   bool
	}{
		"no class":    {nil, true},
		"Weft's":      {func(s *corev1.Service) { s.Spec.LoadBalancerClass = new(BalancerClass) }, true},
		"another's":   {func(s *corev1.Service) { s.Spec.LoadBalancerClass = new("example.com/other") }, false},
		"cluster IP":  {func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeClusterIP }, false},
		"is deleting": {func(s *corev1.Service) { s.DeletionTimestamp = new(metav1.Now()) }, false},
	} {
		if got := Balanced(balanced(c.change)); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// Whatever a Service and its EndpointSlices say, they are rejected or compile to a load balancer that Octavia can have: at most 64 listeners,
// members in the pods' subnet, ports from 1 to 65535.
func FuzzBalancer(f *testing.F) {
	f.Add([]byte(`{"spec":{"externalIPs":["192.0.2.7"],"ports":[{"name":"http","port":80},{"name":"dns","port":53,"protocol":"UDP"}]}}`),
		[]byte(`{"addressType":"IPv4","ports":[{"name":"http","port":8080,"protocol":"TCP"}],"endpoints":[{"addresses":["10.244.0.5","10.9.0.1"]}]}`))
	f.Add([]byte(`{"spec":{"loadBalancerIP":"fe80::1%lo","ports":[{"port":0,"protocol":"X"}]}}`), []byte(`{"ports":[{}]}`))
	f.Add([]byte(`{"spec":{"loadBalancerIP":"192.0.2.1","externalIPs":["a","b"],"ports":[{"port":1,"protocol":"SCTP"}]}}`),
		[]byte(`{"addressType":"IPv4","ports":[{"port":70000}],"endpoints":[{"addresses":["10.244.0.5","10.244.0.5"],"conditions":{"ready":true}}]}`))
	n := &stackubev1.Network{Spec: stackubev1.NetworkSpec{NetworkID: "net"}}
	held := &cloud.HeldNetwork{Held: []subnets.Subnet{{
		ID: "v4", IPVersion: 4, CIDR: "10.244.0.0/16", AllocationPools: []subnets.AllocationPool{{Start: "10.244.0.2", End: "10.244.0.9"}},
	}}}
	f.Fuzz(func(t *testing.T, serviceText, sliceText []byte) {
		var s corev1.Service
		var slice discoveryv1.EndpointSlice
		if json.Unmarshal(serviceText, &s) != nil || json.Unmarshal(sliceText, &slice) != nil {
			return
		}
		got, err := Balancer(&s, []discoveryv1.EndpointSlice{slice, slice}, n, held, "p")
		if err != nil {
			return
		}
		if got.FloatingIP.IsValid() && !got.FloatingIP.Is4() || len(got.Listeners) != len(s.Spec.Ports) || len(got.Listeners) > mostListeners {
			t.Errorf("accepted %+v", got)
		}
		for _, l := range got.Listeners {
			if !slices.Contains([]string{"TCP", "UDP", "SCTP"}, l.Protocol) {
				t.Errorf("protocol %q", l.Protocol)
			}
			seen := map[cloud.Member]bool{}
			for _, m := range l.Members {
				if seen[m] || m.Port < 1 || m.Port > 65535 || !netip.MustParsePrefix("10.244.0.0/16").Contains(m.Addr) {
					t.Errorf("member %+v of %+v", m, l.Members)
				}
				seen[m] = true
			}
		}
	})
}
