package service_test

import (
	"encoding/json"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"weft.dev/weft/internal/service"
	"weft.dev/weft/internal/transport"
)

func parse[T any](t testing.TB, text string) *T {
	t.Helper()
	obj := new(T)
	if err := json.Unmarshal([]byte(text), obj); err != nil {
		t.Fatal(err)
	}
	return obj
}

var byValue = cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}, netip.AddrPort{})

func TestFromService(t *testing.T) {
	got, ok := service.FromService(parse[corev1.Service](t, `{"metadata":{"namespace":"ns","name":"web","annotations":{"idling.alpha.openshift.io/idled-at":"2026-01-02T03:04:05Z"}},"spec":{
		"type":"LoadBalancer","clusterIP":"fd00::1","clusterIPs":["fd00::1","172.30.0.10"],"externalIPs":["192.0.2.50","::1","127.0.0.1","192.0.2.50"],
		"internalTrafficPolicy":"Local","externalTrafficPolicy":"Local","loadBalancerSourceRanges":[" 10.9.1.0/16 ","fd00::/8"],"sessionAffinity":"ClientIP",
		"sessionAffinityConfig":{"clientIP":{"timeoutSeconds":30}},
		"ports":[{"name":"http","port":80,"targetPort":"http","nodePort":30080},{"name":"dns","port":53,"protocol":"UDP"},{"name":"x","port":0}]},
		"status":{"loadBalancer":{"ingress":[{"ip":"192.0.2.60"},{"ip":"192.0.2.61","ipMode":"Proxy"},{"ip":"192.0.2.62","ipMode":"VIP"},{"hostname":"lb"}]}}}`))
	want := service.Service{
		Namespace: "ns", Name: "web", ClusterIP: netip.MustParseAddr("172.30.0.10"), ExternalIPs: []netip.Addr{netip.MustParseAddr("192.0.2.50")},
		LoadBalancerIPs: []netip.Addr{netip.MustParseAddr("192.0.2.60"), netip.MustParseAddr("192.0.2.62")},
		SourceRanges:    []netip.Prefix{netip.MustParsePrefix("10.9.0.0/16")},
		InternalLocal:   true, ExternalLocal: true, Affinity: 30 * time.Second, Idled: true,
		Ports: []service.Port{{Name: "http", Protocol: transport.TCP, Number: 80, NodePort: 30080}, {Name: "dns", Protocol: transport.UDP, Number: 53}},
	}
	if diff := cmp.Diff(want, got, byValue); diff != "" || !ok {
		t.Error(ok, diff)
	}
	for name, text := range map[string]string{
		"headless":          `{"spec":{"clusterIP":"None","ports":[{"port":80}]}}`,
		"ExternalName":      `{"spec":{"type":"ExternalName","externalName":"example.org"}}`,
		"not yet allocated": `{"spec":{"ports":[{"port":80}]}}`,
		"IPv6 only":         `{"spec":{"clusterIP":"fd00::1","clusterIPs":["fd00::1"],"ports":[{"port":80}]}}`,
	} {
		if _, ok := service.FromService(parse[corev1.Service](t, text)); ok {
			t.Errorf("%s has virtual addresses", name)
		}
	}
	for text, want := range map[string]int{`["10.0.0.0/8","0.0.0.0/0"]`: 0, `["fd00::/8"]`: 1, `[]`: 0, `["nonsense"]`: 1} {
		s, _ := service.FromService(parse[corev1.Service](t, `{"spec":{"clusterIP":"172.30.0.1","loadBalancerSourceRanges":`+text+`}}`))
		if len(s.SourceRanges) != want {
			t.Errorf("source ranges %s become %v", text, s.SourceRanges)
		}
	}
	s, _ := service.FromService(parse[corev1.Service](t, `{"spec":{"clusterIP":"172.30.0.1","sessionAffinity":"ClientIP"}}`))
	if s.Affinity != 3*time.Hour {
		t.Errorf("affinity without a timeout lasts %s, want the API's default", s.Affinity)
	}
}

const sliceJSON = `{"metadata":{"namespace":"ns","name":"web-1","labels":{"kubernetes.io/service-name":"web"}},"addressType":"IPv4",
	"ports":[{"name":"http","port":8080,"protocol":"TCP"},{"port":9090},{"name":"any"}],
	"endpoints":[{"addresses":["10.0.0.1"],"conditions":{"ready":true},"nodeName":"here","hints":{"forZones":[{"name":"z1"}],"forNodes":[{"name":"here"}]}},
	{"addresses":["10.0.0.2"],"conditions":{"ready":false,"serving":true,"terminating":true}},{"addresses":["10.0.0.3"]},{"addresses":["127.0.0.1"]},{"addresses":["fd00::1"]},{"addresses":[]}]}`

func TestFromSlice(t *testing.T) {
	got, ok := service.FromSlice(parse[discoveryv1.EndpointSlice](t, sliceJSON))
	want := service.Slice{
		Namespace: "ns", Service: "web", Name: "web-1",
		Ports: []service.SlicePort{{Name: "http", Protocol: transport.TCP, Number: 8080}, {Protocol: transport.TCP, Number: 9090}},
		Endpoints: []service.SliceEndpoint{
			{IP: netip.MustParseAddr("10.0.0.1"), Node: "here", Ready: true, Serving: true, Zones: []string{"z1"}, Nodes: []string{"here"}},
			{IP: netip.MustParseAddr("10.0.0.2"), Serving: true, Terminating: true},
			{IP: netip.MustParseAddr("10.0.0.3"), Ready: true, Serving: true},
		},
	}
	if diff := cmp.Diff(want, got, byValue); diff != "" || !ok {
		t.Error(ok, diff)
	}
	for name, text := range map[string]string{
		"IPv6":       `{"metadata":{"labels":{"kubernetes.io/service-name":"web"}},"addressType":"IPv6","endpoints":[{"addresses":["fd00::1"]}]}`,
		"FQDN":       `{"metadata":{"labels":{"kubernetes.io/service-name":"web"}},"addressType":"FQDN","endpoints":[{"addresses":["a.b"]}]}`,
		"no Service": `{"addressType":"IPv4","endpoints":[{"addresses":["10.0.0.1"]}]}`,
	} {
		if _, ok := service.FromSlice(parse[discoveryv1.EndpointSlice](t, text)); ok {
			t.Errorf("a slice with %s is used", name)
		}
	}
}

// For any slice, the result has only addresses that a host can have, and valid ports.
func FuzzFromSlice(f *testing.F) {
	f.Add([]byte(sliceJSON))
	f.Add([]byte(`{"metadata":{"labels":{"kubernetes.io/service-name":"x"}},"addressType":"IPv4","ports":[{"port":-1},{"port":70000},{"port":1,"protocol":"ICMP"}],"endpoints":[{"addresses":["::ffff:127.0.0.1","169.254.1.1"]}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		obj := &discoveryv1.EndpointSlice{}
		if json.Unmarshal(data, obj) != nil {
			return
		}
		s, ok := service.FromSlice(obj)
		if !ok {
			return
		}
		for _, p := range s.Ports {
			if p.Number == 0 || p.Protocol.String() == "unknown" {
				t.Errorf("port %+v", p)
			}
		}
		for _, e := range s.Endpoints {
			if !e.IP.Is4() || e.IP.IsLoopback() || e.IP.IsLinkLocalUnicast() || e.IP.IsMulticast() || e.IP.IsUnspecified() {
				t.Errorf("endpoint %s", e.IP)
			}
		}
		svc := service.Service{Namespace: s.Namespace, Name: s.Service, ClusterIP: netip.MustParseAddr("172.30.0.1")}
		for _, p := range s.Ports {
			svc.Ports = append(svc.Ports, service.Port{Name: p.Name, Protocol: p.Protocol, Number: p.Number})
		}
		for _, v := range service.Compile(svc, []service.Slice{s}, here) {
			if (v.Verdict == service.Forward) != (len(v.Endpoints) > 0) {
				t.Errorf("verdict %d with %d endpoints", v.Verdict, len(v.Endpoints))
			}
		}
	})
}

// For any Service, the result has only addresses that traffic can have, and valid ports.
func FuzzFromService(f *testing.F) {
	f.Add([]byte(`{"metadata":{"name":"web","namespace":"shop"},"spec":{"clusterIP":"172.30.0.1","ports":[{"port":80,"protocol":"TCP","nodePort":30080}],"externalIPs":["192.0.2.9"]}}`))
	f.Add([]byte(`{"spec":{"clusterIP":"::1","clusterIPs":["127.0.0.1","x"],"sessionAffinity":"ClientIP","sessionAffinityConfig":{"clientIP":{"timeoutSeconds":-1}},"ports":[{"port":70000},{"port":53,"protocol":"ICMP"}]}}`))
	f.Add([]byte(`{"spec":{"clusterIP":"10.0.0.1","loadBalancerSourceRanges":["1.2.3.4/33"," 10.0.0.0/8"]},"status":{"loadBalancer":{"ingress":[{"ip":"224.0.0.1","ipMode":"VIP"},{"hostname":"a"}]}}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		obj := &corev1.Service{}
		if json.Unmarshal(data, obj) != nil {
			return
		}
		s, ok := service.FromService(obj)
		if !ok {
			return
		}
		for _, ip := range append(append([]netip.Addr{s.ClusterIP}, s.ExternalIPs...), s.LoadBalancerIPs...) {
			if ip.IsValid() && (!ip.Is4() || ip.IsLoopback() || ip.IsLinkLocalUnicast() || ip.IsMulticast() || ip.IsUnspecified()) {
				t.Errorf("address %s", ip)
			}
		}
		if s.Affinity < 0 || s.Affinity > 24*time.Hour {
			t.Errorf("affinity %s", s.Affinity)
		}
		for _, p := range s.Ports {
			if p.Number == 0 || p.Protocol.String() == "unknown" {
				t.Errorf("port %+v", p)
			}
		}
	})
}
