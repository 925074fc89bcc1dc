package provider

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"weft.dev/weft/api/kubestack"
	"weft.dev/weft/internal/neutron/cloud"
	"weft.dev/weft/internal/neutron/plug"
)

// Empty messages get an error that names a field, not a panic.
func TestEmptyMessages(t *testing.T) {
	c := reachable(cloud.New(nil, cloud.Config{}))
	n, b := &networks{cloud: c}, &balancers{cloud: c}
	recs, err := openRecords(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	p := &pods{Options: Options{Cloud: c}, records: recs}
	ctx := t.Context()
	for name, c := range map[string]struct {
		call func() (interface{ GetError() string }, error)
		want string
	}{
		"CreateNetwork":      {func() (interface{ GetError() string }, error) { return n.CreateNetwork(ctx, nil) }, "network"},
		"UpdateNetwork":      {func() (interface{ GetError() string }, error) { return n.UpdateNetwork(ctx, nil) }, "network"},
		"DeleteNetwork":      {func() (interface{ GetError() string }, error) { return n.DeleteNetwork(ctx, nil) }, "networkName"},
		"GetLoadBalancer":    {func() (interface{ GetError() string }, error) { return b.GetLoadBalancer(ctx, nil) }, "name"},
		"CreateLoadBalancer": {func() (interface{ GetError() string }, error) { return b.CreateLoadBalancer(ctx, nil) }, "loadBalancer"},
		"UpdateLoadBalancer": {func() (interface{ GetError() string }, error) { return b.UpdateLoadBalancer(ctx, nil) }, "name"},
		"DeleteLoadBalancer": {func() (interface{ GetError() string }, error) { return b.DeleteLoadBalancer(ctx, nil) }, "name"},
		"SetupPod":           {func() (interface{ GetError() string }, error) { return p.SetupPod(ctx, nil) }, "podName"},
		"TeardownPod":        {func() (interface{ GetError() string }, error) { return p.TeardownPod(ctx, nil) }, "podName"},
		"PodStatus":          {func() (interface{ GetError() string }, error) { return p.PodStatus(ctx, nil) }, "podName"},
	} {
		answer, err := c.call()
		if err != nil || !strings.Contains(answer.GetError(), c.want) {
			t.Errorf("%s: error %q (%v) does not name %s", name, answer.GetError(), err, c.want)
		}
	}
	if got, err := n.GetNetwork(ctx, nil); err != nil || got.GetError() != "" || got.GetNetwork() != nil {
		t.Errorf("GetNetwork without name and id: %v %v; KubeStack answers nothing", got, err)
	}
	if got, err := n.CheckTenantID(ctx, nil); err != nil || got.GetError() != "" || got.GetResult() {
		t.Errorf("CheckTenantID of nothing: %v %v", got, err)
	}
}

func TestParseSubnets(t *testing.T) {
	good := func() *kubestack.Subnet {
		return &kubestack.Subnet{Name: "a", Cidr: "10.0.0.0/24", Gateway: "10.0.0.1", Dnsservers: []string{"192.0.2.1"}}
	}
	for field, spoil := range map[string]func(*kubestack.Subnet){
		"subnets[1].cidr":                      func(s *kubestack.Subnet) { s.Cidr = "10.0.0.0" },
		"subnets[1].gateway":                   func(s *kubestack.Subnet) { s.Gateway = "10.0.1.1" },
		"subnets[1].dnsservers[0]":             func(s *kubestack.Subnet) { s.Dnsservers[0] = "dns" },
		"subnets[1].name":                      func(s *kubestack.Subnet) { s.Name = "first" },
		"subnets[1].routes[0].destinationCIDR": func(s *kubestack.Subnet) { s.Routes = []*kubestack.Route{{Nexthop: "10.0.0.9"}} },
		"subnets[1].routes[0].nexthop":         func(s *kubestack.Subnet) { s.Routes = []*kubestack.Route{{DestinationCIDR: "0.0.0.0/0"}} },
	} {
		first, second := good(), good()
		first.Name = "first"
		spoil(second)
		if _, err := parseSubnets("net", []*kubestack.Subnet{first, second}); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("error %v does not name %s", err, field)
		}
	}
	got, err := parseSubnets("net", []*kubestack.Subnet{{Cidr: "10.0.0.7/24"}})
	if err != nil || got[0].Name != "net-subnet-0" || got[0].CIDR != netip.MustParsePrefix("10.0.0.0/24") {
		t.Errorf("%+v %v", got, err)
	}
}

func TestListenersAreGroupedByPort(t *testing.T) {
	got, err := listenersOf("UDP", []*kubestack.HostPort{
		{Ipaddress: "10.0.0.2", ServicePort: 53, TargetPort: 5353},
		{Ipaddress: "10.0.0.2", ServicePort: 54, TargetPort: 5353},
		{Ipaddress: "10.0.0.3", ServicePort: 53, TargetPort: 5353},
	})
	if err != nil || len(got) != 2 || len(got[0].Members) != 2 || got[0].Port != 53 || got[1].Port != 54 {
		t.Errorf("%+v %v", got, err)
	}
	for field, bad := range map[string]*kubestack.HostPort{
		"hosts[0].ipaddress":   {Ipaddress: "x", ServicePort: 1, TargetPort: 1},
		"hosts[0].servicePort": {Ipaddress: "10.0.0.2", TargetPort: 1},
		"hosts[0].targetPort":  {Ipaddress: "10.0.0.2", ServicePort: 1, TargetPort: 65536},
	} {
		if _, err := listenersOf("TCP", []*kubestack.HostPort{bad}); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("error %v does not name %s", err, field)
		}
	}
}

// Names become file names and parts of ports' names.
func TestHostileNames(t *testing.T) {
	for _, bad := range []string{"", "../../etc/passwd", "a/b", "a_b", "A", strings.Repeat("a", 254), "a\x00", "-a"} {
		req := &kubestack.SetupPodRequest{PodName: bad, Namespace: "ns", Network: &kubestack.Network{Uid: "u"}}
		if err := check(req); err == nil {
			t.Errorf("%q passes for a pod's name", bad)
		}
	}
	for _, bad := range []string{"", "../1", "a/b", "-rf", strings.Repeat("a", 129)} {
		if _, err := (Runtimes{}).NetNS(t.Context(), "docker", bad); err == nil || !strings.Contains(err.Error(), "podInfraContainerID") {
			t.Errorf("%q passes for a container's id: %v", bad, err)
		}
	}
}

// A loss of power may leave an empty record. The pod's port is then found by its name.
func TestEmptyRecord(t *testing.T) {
	recs, err := openRecords(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for content, broken := range map[string]bool{"": false, "\x00\x00": false, "{": true, `{"portID": "p"}`: false} {
		if err := os.WriteFile(recs.path("red_web"), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if rec, err := recs.get("red_web"); (err != nil) != broken || (rec != nil) != (content == `{"portID": "p"}`) {
			t.Errorf("%q: %+v, %v", content, rec, err)
		}
	}
}

// Other content of the specification stays.
func TestHyperSpec(t *testing.T) {
	dir := t.TempDir()
	req := &kubestack.SetupPodRequest{PodName: "web", Namespace: "red"}
	path := filepath.Join(dir, "web_red")
	if err := os.WriteFile(path, []byte(`{"id": "web", "dns": ["192.0.2.1"], "containers": [{"name": "a"}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	port := plug.Port{ID: "0123456789abcdef", Addrs: []netip.Prefix{netip.MustParsePrefix("10.0.0.5/24")}, Gateway: netip.MustParseAddr("10.0.0.1")}
	for range 2 { // the second changes nothing
		if err := writeHyperSpec(dir, req, port, &cloud.HeldNetwork{}); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{`"name": "a"`, `"192.0.2.1"`, `"bridge": "qbr0123456789a"`, `"ifname": "tap0123456789a"`, `"ip": "10.0.0.5/24"`, `"gateway": "10.0.0.1"`} {
			if strings.Count(string(got), want) != 1 {
				t.Errorf("%s is not once in %s", want, got)
			}
		}
	}
}

// Whatever bytes arrive as a network, they are rejected or result in subnets that are valid for Neutron.
func FuzzSubnets(f *testing.F) {
	seed, err := proto.Marshal(&kubestack.Network{Name: "n", Subnets: []*kubestack.Subnet{{Cidr: "10.0.0.0/24", Gateway: "10.0.0.1"}}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed)
	f.Fuzz(func(t *testing.T, raw []byte) {
		var n kubestack.Network
		if proto.Unmarshal(raw, &n) != nil {
			return
		}
		got, err := parseSubnets(n.GetName(), n.GetSubnets())
		if err != nil {
			return
		}
		for _, s := range got {
			if !s.CIDR.Addr().Is4() || s.CIDR != s.CIDR.Masked() || s.Gateway.IsValid() && !s.CIDR.Contains(s.Gateway) {
				t.Errorf("accepted %+v", s)
			}
		}
	})
}
