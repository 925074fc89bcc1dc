package service_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weft.dev/weft/internal/service"
	"weft.dev/weft/internal/transport"
)

var here = service.Place{Node: "here", Zone: "z1"}

// eps returns endpoints from texts of the form "<last byte>[@node][:state]". The states are r (ready), s (serves and terminates), t
// (terminates) and n (not ready); "!z=a" and "!n=b" are hints.
func eps(texts ...string) []service.SliceEndpoint {
	var list []service.SliceEndpoint
	for _, text := range texts {
		text, hint, _ := strings.Cut(text, "!")
		rest, state, _ := strings.Cut(text, ":")
		last, node, _ := strings.Cut(rest, "@")
		e := service.SliceEndpoint{IP: netip.MustParseAddr("10.0.0." + last), Node: node}
		e.Ready = state == "" || state == "r"
		e.Serving = e.Ready || state == "s"
		e.Terminating = state == "s" || state == "t"
		if zone, ok := strings.CutPrefix(hint, "z="); ok {
			e.Zones = []string{zone}
		}
		if name, ok := strings.CutPrefix(hint, "n="); ok {
			e.Nodes = []string{name}
		}
		list = append(list, e)
	}
	return list
}

func slice(name string, endpoints ...string) service.Slice {
	return service.Slice{
		Namespace: "ns", Service: "web", Name: name, Endpoints: eps(endpoints...),
		Ports: []service.SlicePort{{Name: "http", Protocol: transport.TCP, Number: 8080}},
	}
}

func web(change func(*service.Service)) service.Service {
	s := service.Service{
		Namespace: "ns", Name: "web", ClusterIP: netip.MustParseAddr("172.30.0.10"),
		Ports: []service.Port{{Name: "http", Protocol: transport.TCP, Number: 80}},
	}
	if change != nil {
		change(&s)
	}
	return s
}

// lines prints addresses, one per line.
func lines(list []service.VirtualAddress) []string {
	out := []string{}
	for _, v := range list {
		where := v.IP.String()
		if v.Kind == service.KindNodePort {
			where = "node"
			if v.OnlyThisNode {
				where = "this node"
			}
		}
		line := fmt.Sprintf("%s %s:%d %s", v.Protocol, where, v.Port, [...]string{"to", "reject", "drop", "wake"}[v.Verdict])
		for _, e := range v.Endpoints {
			line += " " + strings.TrimPrefix(e.Addr.String(), "10.0.0.")
		}
		if v.Affinity != 0 {
			line += " sticks " + v.Affinity.String()
		}
		if len(v.SourceRanges) > 0 {
			line += fmt.Sprintf(" from %v", v.SourceRanges)
		}
		out = append(out, line)
	}
	return out
}

func TestCompile(t *testing.T) {
	external := func(s *service.Service) {
		s.ExternalIPs = []netip.Addr{netip.MustParseAddr("192.0.2.50")}
		s.LoadBalancerIPs = []netip.Addr{netip.MustParseAddr("192.0.2.60")}
		s.SourceRanges = []netip.Prefix{netip.MustParsePrefix("10.9.0.0/16")}
		s.Ports[0].NodePort = 30080
	}
	internalLocal := func(s *service.Service) { s.InternalLocal = true }
	externalLocal := func(s *service.Service) { external(s); s.ExternalLocal = true }
	for _, c := range []struct {
		name   string
		svc    service.Service
		slices []service.Slice
		want   []string
	}{
		{"ready endpoints only", web(nil), []service.Slice{slice("a", "1", "2:n", "3:s", "4:t")}, []string{"TCP 172.30.0.10:80 to 1:8080"}},
		{"serving and terminating, if none is ready", web(nil), []service.Slice{slice("a", "2:n", "3:s", "4:t")}, []string{"TCP 172.30.0.10:80 to 3:8080"}},
		{"none that answers", web(nil), []service.Slice{slice("a", "2:n", "4:t")}, []string{"TCP 172.30.0.10:80 reject"}},
		{"no slices", web(nil), nil, []string{"TCP 172.30.0.10:80 reject"}},
		{"idled", web(func(s *service.Service) { s.Idled = true; external(s) }), []service.Slice{slice("a", "2:n")}, []string{
			"TCP 172.30.0.10:80 wake", "TCP 192.0.2.50:80 wake", "TCP 192.0.2.60:80 wake from [10.9.0.0/16]", "TCP node:30080 wake",
		}},
		{"idled, and has endpoints", web(func(s *service.Service) { s.Idled = true }), []service.Slice{slice("a", "1")}, []string{"TCP 172.30.0.10:80 to 1:8080"}},
		{"idled, with an endpoint elsewhere", web(func(s *service.Service) { s.Idled, s.InternalLocal = true, true }), []service.Slice{slice("a", "1@there")}, []string{"TCP 172.30.0.10:80 drop"}},
		{"idled before, and its pods are awaited", web(func(s *service.Service) { s.Waking = true }), []service.Slice{slice("a", "2:n")}, []string{"TCP 172.30.0.10:80 drop"}},
		{"several slices, each endpoint once, sorted", web(nil), []service.Slice{slice("b", "3", "1"), slice("a", "1:n", "2")}, []string{"TCP 172.30.0.10:80 to 1:8080 2:8080 3:8080"}},
		{
			"slices of others", web(nil),
			[]service.Slice{{Namespace: "other", Service: "web", Ports: slice("").Ports, Endpoints: eps("1")}, {Namespace: "ns", Service: "other", Ports: slice("").Ports, Endpoints: eps("1")}},
			[]string{"TCP 172.30.0.10:80 reject"},
		},
		{"internal Local, with one here", web(internalLocal), []service.Slice{slice("a", "1@here", "2@there")}, []string{"TCP 172.30.0.10:80 to 1:8080"}},
		{"internal Local, with none here", web(internalLocal), []service.Slice{slice("a", "2@there", "3")}, []string{"TCP 172.30.0.10:80 drop"}},
		{"internal Local, with none anywhere", web(internalLocal), []service.Slice{slice("a", "2@there:n")}, []string{"TCP 172.30.0.10:80 reject"}},
		{"internal Local, one here terminates and others are ready", web(internalLocal), []service.Slice{slice("a", "1@here:s", "2@there")}, []string{"TCP 172.30.0.10:80 to 1:8080"}},
		{"internal Local, the one elsewhere only terminates", web(internalLocal), []service.Slice{slice("a", "2@there:s")}, []string{"TCP 172.30.0.10:80 drop"}},
		{"all sorts of addresses", web(external), []service.Slice{slice("a", "1")}, []string{
			"TCP 172.30.0.10:80 to 1:8080", "TCP 192.0.2.50:80 to 1:8080", "TCP 192.0.2.60:80 to 1:8080 from [10.9.0.0/16]", "TCP node:30080 to 1:8080",
		}},
		{"all sorts of addresses, no endpoints", web(external), nil, []string{
			"TCP 172.30.0.10:80 reject", "TCP 192.0.2.50:80 reject", "TCP 192.0.2.60:80 reject", "TCP node:30080 reject",
		}},
		{"external Local, for pods, means all", web(externalLocal), []service.Slice{slice("a", "1@there", "2@here")}, []string{
			"TCP 172.30.0.10:80 to 1:8080 2:8080", "TCP 192.0.2.50:80 to 1:8080 2:8080", "TCP 192.0.2.60:80 to 1:8080 2:8080 from [10.9.0.0/16]", "TCP this node:30080 to 1:8080 2:8080",
		}},
		{"external Local and internal Local", web(func(s *service.Service) { externalLocal(s); s.InternalLocal = true }), []service.Slice{slice("a", "1@there")}, []string{
			"TCP 172.30.0.10:80 drop", "TCP 192.0.2.50:80 to 1:8080", "TCP 192.0.2.60:80 to 1:8080 from [10.9.0.0/16]", "TCP this node:30080 to 1:8080",
		}},
		{"an address named twice", web(func(s *service.Service) {
			external(s)
			s.LoadBalancerIPs, s.Ports[0].NodePort = s.ExternalIPs, 0
		}), []service.Slice{slice("a", "1")}, []string{"TCP 172.30.0.10:80 to 1:8080", "TCP 192.0.2.50:80 to 1:8080"}},
		{"affinity", web(func(s *service.Service) { s.Affinity = time.Minute }), []service.Slice{slice("a", "1")}, []string{"TCP 172.30.0.10:80 to 1:8080 sticks 1m0s"}},
		{"hints of zones", web(nil), []service.Slice{slice("a", "1!z=z1", "2!z=z2", "3:n")}, []string{"TCP 172.30.0.10:80 to 1:8080"}},
		{"hints of zones, not on all", web(nil), []service.Slice{slice("a", "1!z=z1", "2")}, []string{"TCP 172.30.0.10:80 to 1:8080 2:8080"}},
		{"hints of zones, none for this", web(nil), []service.Slice{slice("a", "1!z=z3", "2!z=z2")}, []string{"TCP 172.30.0.10:80 to 1:8080 2:8080"}},
		{"hints of nodes", web(nil), []service.Slice{slice("a", "1!n=here", "2!n=there")}, []string{"TCP 172.30.0.10:80 to 1:8080"}},
		{"hints, and none is ready", web(nil), []service.Slice{slice("a", "1:s!z=z2", "2:s!z=z1")}, []string{"TCP 172.30.0.10:80 to 1:8080 2:8080"}},
		{
			"several ports, resolved by slices, which differ",
			web(func(s *service.Service) {
				s.Ports = append(s.Ports, service.Port{Name: "dns", Protocol: transport.UDP, Number: 53}, service.Port{Name: "sig", Protocol: transport.SCTP, Number: 80})
			}),
			[]service.Slice{
				{Namespace: "ns", Service: "web", Name: "a", Endpoints: eps("1"), Ports: []service.SlicePort{
					{Name: "http", Protocol: transport.TCP, Number: 8080}, {Name: "dns", Protocol: transport.UDP, Number: 5353}, {Name: "dns", Protocol: transport.TCP, Number: 5354},
				}},
				{Namespace: "ns", Service: "web", Name: "b", Endpoints: eps("1", "2"), Ports: []service.SlicePort{{Name: "http", Protocol: transport.TCP, Number: 9090}}},
			},
			[]string{"TCP 172.30.0.10:80 to 1:8080 1:9090 2:9090", "UDP 172.30.0.10:53 to 1:5353", "SCTP 172.30.0.10:80 reject"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := lines(service.Compile(c.svc, c.slices, here))
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestCompileNamesTheOwner(t *testing.T) {
	v := service.Compile(web(nil), []service.Slice{slice("a", "1@here")}, here)[0]
	if v.Owner != "service/ns/web" || v.PortName != "http" || !v.Endpoints[0].Local || v.Endpoints[0].Node != "here" {
		t.Errorf("%+v", v)
	}
}

func TestOutdated(t *testing.T) {
	dns := web(func(s *service.Service) {
		s.Ports = []service.Port{{Name: "dns", Protocol: transport.UDP, Number: 53, NodePort: 30053}, {Name: "http", Protocol: transport.TCP, Number: 80}}
	})
	with := func(endpoints ...string) []service.VirtualAddress {
		s := slice("a", endpoints...)
		s.Ports = append(s.Ports, service.SlicePort{Name: "dns", Protocol: transport.UDP, Number: 5353})
		return service.Compile(dns, []service.Slice{s}, here)
	}
	idled := dns
	idled.Idled = true
	asleep := service.Compile(idled, nil, here)
	for _, c := range []struct {
		name          string
		before, after []service.VirtualAddress
		want          []string
	}{
		{"one without endpoints is idled", with("1:n"), asleep, []string{"172.30.0.10:53 invalid AddrPort", "node:30053 invalid AddrPort"}},
		{"one is idled with its last endpoint", with("1"), asleep, []string{"172.30.0.10:53 10.0.0.1:5353", "node:30053 10.0.0.1:5353"}},
		{"an idled one wakes", asleep, with("1"), []string{"172.30.0.10:53 invalid AddrPort", "node:30053 invalid AddrPort"}},
		{"nothing changes", with("1", "2"), with("1", "2"), nil},
		{"one is added", with("1"), with("1", "2"), nil},
		{"one goes", with("1", "2"), with("2"), []string{"172.30.0.10:53 10.0.0.1:5353", "node:30053 10.0.0.1:5353"}},
		{"one still serves", with("1", "2"), with("1:s", "2"), nil},
		{"one that served on is gone", with("1:s", "2"), with("1:t", "2"), []string{"172.30.0.10:53 10.0.0.1:5353", "node:30053 10.0.0.1:5353"}},
		{"the Service goes", with("1"), nil, []string{"172.30.0.10:53 10.0.0.1:5353", "node:30053 10.0.0.1:5353"}},
		{"the first comes", with("1:n"), with("1"), []string{"172.30.0.10:53 invalid AddrPort", "node:30053 invalid AddrPort"}},
		{"the Service comes", nil, with("1"), []string{"172.30.0.10:53 invalid AddrPort", "node:30053 invalid AddrPort"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got []string
			for _, s := range service.Outdated(c.before, c.after) {
				where := "node"
				if s.IP.IsValid() {
					where = s.IP.String()
				}
				got = append(got, fmt.Sprintf("%s:%d %s", where, s.Port, s.Endpoint))
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}
