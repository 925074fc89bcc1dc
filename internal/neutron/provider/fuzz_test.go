package provider

import (
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/subnets"
	"google.golang.org/protobuf/proto"

	"weft.dev/weft/api/kubestack"
	"weft.dev/weft/internal/neutron/cloud"
	"weft.dev/weft/internal/neutron/plug"
)

const mostPort = 65535

// Whatever bytes arrive as a load balancer, they are rejected or result in listeners and an address that Octavia and Neutron can have: ports
// from 1 to 65535, a listener for each, addresses without a zone.
func FuzzBalancer(f *testing.F) {
	for _, lb := range []*kubestack.LoadBalancer{
		{Hosts: []*kubestack.HostPort{{Ipaddress: "10.0.0.2", ServicePort: 80, TargetPort: 8080}, {Ipaddress: "10.0.0.3", ServicePort: 80, TargetPort: 8080}}},
		{ExternalIPs: []string{"192.0.2.7"}, LoadBalanceType: "UDP"},
		{ExternalIPs: []string{"::1%lo"}, Hosts: []*kubestack.HostPort{{Ipaddress: "fe80::1%eth0", ServicePort: -1, TargetPort: 65536}}},
	} {
		seed, err := proto.Marshal(lb)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		var lb kubestack.LoadBalancer
		if proto.Unmarshal(raw, &lb) != nil {
			return
		}
		if addr, err := floatingOf(lb.GetExternalIPs()); err == nil && addr.IsValid() != (len(lb.GetExternalIPs()) == 1) || addr.IsValid() && !addr.Is4() {
			t.Errorf("%q is the floating IP %s", lb.GetExternalIPs(), addr)
		}
		protocol, err := protocolOf(lb.GetLoadBalanceType())
		if err != nil {
			return
		}
		got, err := listenersOf(protocol, lb.GetHosts())
		if err != nil {
			return
		}
		members, seen := 0, map[int]bool{}
		for _, l := range got {
			if l.Protocol != "TCP" && l.Protocol != "UDP" || l.Port < 1 || l.Port > mostPort || seen[l.Port] {
				t.Errorf("listener %s %d of %+v", l.Protocol, l.Port, got)
			}
			seen[l.Port] = true
			for _, m := range l.Members {
				members++
				if !m.Addr.IsValid() || m.Addr.Zone() != "" || m.Port < 1 || m.Port > mostPort {
					t.Errorf("member %+v", m)
				}
			}
		}
		if members != len(lb.GetHosts()) {
			t.Errorf("%d members of %d hosts", members, len(lb.GetHosts()))
		}
	})
}

// Whatever the runtime's file has, it is rejected and stays, or it gets the interface and the name servers, and its other content stays. A
// repeated call changes nothing.
func FuzzHyperSpec(f *testing.F) {
	f.Add([]byte(`{"id": "web", "dns": ["192.0.2.1"], "containers": [{"name": "a"}]}`))
	f.Add([]byte(`{"dns": {"a": 1}, "interfaces": null, "DNS": "x"}`))
	f.Add([]byte("null"))
	f.Add([]byte("[]"))
	req := &kubestack.SetupPodRequest{PodName: "web", Namespace: "red"}
	port := plug.Port{ID: "0123456789abcdef", Addrs: []netip.Prefix{netip.MustParsePrefix("10.0.0.5/24")}}
	network := &cloud.HeldNetwork{Held: []subnets.Subnet{{DNSNameservers: []string{"192.0.2.9"}}}}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, raw []byte) {
		path := filepath.Join(dir, "web_red")
		write := func(text []byte) {
			if err := os.WriteFile(path, text, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		read := func() []byte {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			return text
		}
		write(raw)
		if err := writeHyperSpec(dir, req, port, network); err != nil {
			if !slices.Equal(read(), raw) {
				t.Errorf("rejected, and changed: %s", read())
			}
			return
		}
		first := read()
		var before, after map[string]any
		if err := json.Unmarshal(raw, &before); err != nil {
			t.Fatalf("accepted: %v", err)
		}
		if err := json.Unmarshal(first, &after); err != nil {
			t.Fatalf("wrote %s: %v", first, err)
		}
		interfaces, _ := after["interfaces"].([]any)
		dns, _ := after["dns"].([]any)
		if len(interfaces) != 1 || len(dns) == 0 || dns[0] != "192.0.2.9" {
			t.Errorf("wrote %s", first)
		}
		for _, own := range []string{"interfaces", "dns"} {
			delete(before, own)
			delete(after, own)
		}
		if len(before) > 0 && !reflect.DeepEqual(before, after) {
			t.Errorf("other content was %v, is %v", before, after)
		}
		if err := writeHyperSpec(dir, req, port, network); err != nil || !slices.Equal(read(), first) {
			t.Errorf("the second call wrote %s after %s: %v", read(), first, err)
		}
	})
}

// Whatever Neutron answers, a port is rejected or has a MAC address of an interface, addresses of its subnets, and a gateway without a zone.
func FuzzPortOf(f *testing.F) {
	f.Add([]byte(`{"id":"p","mac_address":"fa:16:3e:00:00:05","fixed_ips":[{"subnet_id":"s","ip_address":"10.0.0.5"}]}`),
		[]byte(`{"id":"s","cidr":"10.0.0.0/24","gateway_ip":"10.0.0.1"}`))
	f.Add([]byte(`{"id":"p","mac_address":"01:00:5e:00:00:05:00:00","fixed_ips":[{"subnet_id":"s","ip_address":"fd00::5%x"}]}`),
		[]byte(`{"id":"s","cidr":"fd00::/64","gateway_ip":"fe80::1%eth0"}`))
	f.Add([]byte(`{"id":"p","mac_address":"fa:16:3e:00:00:05","fixed_ips":[{"subnet_id":"s","ip_address":"fd00::5"}]}`),
		[]byte(`{"id":"s","cidr":"fd00::/64","gateway_ip":"fe80::1%eth0"}`))
	f.Fuzz(func(t *testing.T, portText, subnetText []byte) {
		var held cloud.HeldPort
		var subnet subnets.Subnet
		if json.Unmarshal(portText, &held) != nil || json.Unmarshal(subnetText, &subnet) != nil {
			return
		}
		got, err := portOf(&cloud.HeldNetwork{Held: []subnets.Subnet{subnet}}, &held)
		if err != nil {
			return
		}
		if len(got.MAC) != 6 || got.MAC[0]&1 != 0 || len(got.Addrs) == 0 {
			t.Errorf("accepted %+v", got)
		}
		for _, a := range got.Addrs {
			if !netip.MustParsePrefix(subnet.CIDR).Contains(a.Addr()) {
				t.Errorf("address %s of %s", a, subnet.CIDR)
			}
		}
		if got.Gateway.Zone() != "" {
			t.Errorf("gateway %s", got.Gateway)
		}
	})
}

// Whatever the file of a pod's record has, it is reported as broken, or means nothing, or is the same after writing and reading it.
func FuzzRecord(f *testing.F) {
	f.Add([]byte(`{"portID":"p","runtime":"docker","sandbox":"s"}`))
	f.Add([]byte("\x00\x00"))
	f.Add([]byte("null"))
	recs, err := openRecords(f.TempDir())
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		if err := os.WriteFile(recs.path("red_web"), raw, 0o600); err != nil {
			t.Fatal(err)
		}
		rec, err := recs.get("red_web")
		if err != nil || rec == nil {
			return
		}
		if err := recs.put("red_web", *rec); err != nil {
			t.Fatal(err)
		}
		if again, err := recs.get("red_web"); err != nil || again == nil || *again != *rec {
			t.Errorf("%+v is read back as %+v: %v", rec, again, err)
		}
	})
}
