package objects

import (
	"encoding/json"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/networks"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/ports"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/subnets"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	stackubev1 "weft.dev/weft/api/stackube/v1"
	weftv1 "weft.dev/weft/api/weft/v1"
	"weft.dev/weft/internal/neutron/ahead"
	"weft.dev/weft/internal/neutron/cloud"
	"weft.dev/weft/internal/placement"
)

func TestBinder(t *testing.T) {
	network := func(namespace, name string) stackubev1.Network {
		return stackubev1.Network{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	}
	cluster := placement.Cluster{
		Default: "overlay", Known: []string{"overlay", NetworkKind},
		Binders: []placement.Binder{Binder([]stackubev1.Network{network("blue", "blue"), network("red", "second")})},
	}
	const tenant, plain = true, false
	for _, c := range []struct {
		namespace, annotation string
		tenant                bool
		network, part         string
		refuse                string
	}{
		{"blue", "", plain, NetworkKind, "blue", ""},
		{"blue", "neutron/other", plain, NetworkKind, "other", ""},
		{"blue", "overlay", plain, "overlay", "", ""},
		{"red", "", plain, "overlay", "", ""},
		{"red", "neutron/second", plain, NetworkKind, "second", ""},
		{"blue", "", tenant, NetworkKind, "blue", ""},
		{"blue", "neutron/other", tenant, NetworkKind, "other", ""},
		{"blue", "overlay", tenant, "overlay", "", "on networks of kind neutron only"},
		{"red", "", tenant, NetworkKind, "red", "has no Network red/red"},
		{"red", "overlay", tenant, "overlay", "", "on networks of kind neutron only"},
		{"red", "neutron/second", tenant, NetworkKind, "second", ""},
	} {
		pod := placement.Pod{Namespace: c.namespace, Name: "p"}
		if c.annotation != "" {
			pod.Annotations = map[string]string{placement.AnnotationNetwork: c.annotation}
		}
		namespace := placement.Namespace{Name: c.namespace}
		if c.tenant {
			namespace.Annotations = map[string]string{AnnotationTenant: "u"}
		}
		got := placement.Decide(pod, namespace, cluster)
		if got.Network != c.network || got.Part != c.part || (got.Refuse == "") != (c.refuse == "") || !strings.Contains(got.Refuse, c.refuse) {
			t.Errorf("a pod of %s with annotation %q is on %+v, want %+v", c.namespace, c.annotation, got, c)
		}
	}
}

func TestPlaceOf(t *testing.T) {
	at := ahead.Place{Network: "5b1f", Node: "node-1.example"}
	if got, ok := PlaceOf(PortOwner(at)); !ok || got != at {
		t.Errorf("%+v, %v", got, ok)
	}
	for _, owner := range []string{"", "port/", "port/a", "port//b", "port/a/", "network/a/b"} {
		if got, ok := PlaceOf(owner); ok {
			t.Errorf("%q is %+v", owner, got)
		}
	}
}

func TestPort(t *testing.T) {
	held := &cloud.HeldNetwork{Network: networks.Network{ID: "net"}, Held: []subnets.Subnet{
		{ID: "v6", Name: "a", IPVersion: 6, CIDR: "fd00::/64", GatewayIP: "fd00::1", AllocationPools: []subnets.AllocationPool{{Start: "fd00::2", End: "fd00::9"}}},
		{
			ID: "v4", Name: "b", IPVersion: 4, CIDR: "10.244.0.0/16", GatewayIP: "10.244.0.1",
			AllocationPools: []subnets.AllocationPool{{Start: "10.244.0.2", End: "10.244.255.254"}},
			HostRoutes:      []subnets.HostRoute{{DestinationCIDR: "192.0.2.0/24", NextHop: "10.244.0.9"}},
		},
	}}
	held.MTU = 1442
	port := func(id, owner, mac string, ips ...ports.IP) cloud.HeldPort {
		return cloud.HeldPort{Port: ports.Port{ID: id, DeviceOwner: owner, MACAddress: mac, FixedIPs: ips, Status: "ACTIVE"}}
	}
	all := []cloud.HeldPort{
		port("r", "network:router_interface", "FA:16:3E:00:00:01", ports.IP{SubnetID: "v4", IPAddress: "10.244.0.1"}),
		port("d", "network:dhcp", "fa:16:3e:00:00:02", ports.IP{SubnetID: "v4", IPAddress: "10.244.0.2"}),
		port("p", "compute:n1", "0a:58:0a:f4:00:05", ports.IP{SubnetID: "v4", IPAddress: "10.244.0.5"}, ports.IP{SubnetID: "v4", IPAddress: "10.244.0.6"}),
		port("x", "compute:n1", "0a:58:0a:f4:00:07", ports.IP{SubnetID: "elsewhere", IPAddress: "10.244.0.7"}),
	}
	n := &stackubev1.Network{ObjectMeta: metav1.ObjectMeta{Namespace: "blue", Name: "blue", UID: "u"}}
	got, err := Port(n, held, all, &all[2], "n1")
	if err != nil {
		t.Fatal(err)
	}
	want := weftv1.NeutronPortSpec{
		Network: weftv1.NeutronPortNetwork{Namespace: "blue", Name: "blue", UID: "u", ID: "net"}, Node: "n1", MAC: "0a:58:0a:f4:00:05", MTU: 1442, Active: true,
		Addresses: []weftv1.NeutronPortAddress{{Address: "10.244.0.5/16", Gateway: "10.244.0.1", GatewayMAC: "fa:16:3e:00:00:01"}},
		Routes:    []weftv1.NeutronPortRoute{{Destination: "192.0.2.0/24", NextHop: "10.244.0.9"}},
		DNS:       []string{"10.244.0.2"},
	}
	if diff := cmp.Diff(want, got.Spec); diff != "" || got.Name != "p" || got.Finalizers[0] != weftv1.NeutronPortFinalizer {
		t.Errorf("%s: %s", got.Name, diff)
	}
	dual := port("q", "compute:n1", "0a:58:0a:f4:00:08", ports.IP{SubnetID: "v6", IPAddress: "fd00::8"}, ports.IP{SubnetID: "v4", IPAddress: "10.244.0.8"})
	got, err = Port(n, held, all, &dual, "n1")
	both := []weftv1.NeutronPortAddress{
		{Address: "10.244.0.8/16", Gateway: "10.244.0.1", GatewayMAC: "fa:16:3e:00:00:01"}, {Address: "fd00::8/64", Gateway: "fd00::1"},
	}
	if err != nil || !slices.Equal(got.Spec.Addresses, both) {
		t.Errorf("a port with an address of each family: %+v, %v", got, err)
	}
	for mode, want := range map[string]string{"": "v6", "dhcpv6-stateful": "v6", "slaac": "", "dhcpv6-stateless": ""} {
		held.Held[0].IPv6AddressMode = mode
		if id := PodSubnet6(&stackubev1.Network{Spec: stackubev1.NetworkSpec{NetworkID: "net"}}, held); id != want {
			t.Errorf("address mode %q: the pods' subnet is %q", mode, id)
		}
	}
	if id := PodSubnet6(&stackubev1.Network{Spec: stackubev1.NetworkSpec{CIDR: "10.244.0.0/16"}}, held); id != "" {
		t.Errorf("without ipv6CIDR, the pods' subnet is %q", id)
	}
	if _, err := Port(n, held, all, &all[3], "n1"); !errors.Is(err, ErrNoAddress) {
		t.Errorf("a port of another subnet: %v", err)
	}
	own := &stackubev1.Network{Spec: stackubev1.NetworkSpec{CIDR: "192.168.7.0/24"}}
	if id, _, err := PodSubnet(own, held); !errors.Is(err, ErrNoSubnet) {
		t.Errorf("a network that Weft made, with subnets of the project's own alone: %q, %v", id, err)
	}
	named := &stackubev1.Network{Spec: stackubev1.NetworkSpec{NetworkID: "net"}}
	id, pool, err := PodSubnet(named, held)
	if err != nil || id != "v4" || len(pool) != 1 || pool[0].First.String() != "10.244.0.2" {
		t.Errorf("the pods' subnet is %s, %v: %v", id, pool, err)
	}
	held.Held = held.Held[:1]
	if _, _, err := PodSubnet(named, held); !errors.Is(err, ErrNoSubnet) {
		t.Errorf("a network of IPv6 alone: %v", err)
	}
}

// Whatever Neutron answers, a NeutronPort has only addresses of the port's subnets, one for each family, and the IPv4 address first.
func FuzzPort(f *testing.F) {
	f.Add([]byte(`{"id":"p","mac_address":"0A:58:0a:f4:00:05","status":"ACTIVE","binding:host_id":"h","fixed_ips":[{"subnet_id":"s","ip_address":"10.244.0.5"}]}`),
		[]byte(`{"id":"s","ip_version":4,"cidr":"10.244.0.0/16","gateway_ip":"10.244.0.1","allocation_pools":[{"start":"10.244.0.2","end":"10.244.0.9"}]}`))
	f.Add([]byte(`{"id":"p","fixed_ips":[{"subnet_id":"s","ip_address":"10.244.0.5"},{"subnet_id":"s","ip_address":"10.245.0.5"}]}`),
		[]byte(`{"id":"s","ip_version":6,"cidr":"10.244.0.0/99","allocation_pools":[{"start":"10.244.0.9","end":"fd00::1"}]}`))
	f.Fuzz(func(t *testing.T, portText, subnetText []byte) {
		var port cloud.HeldPort
		var subnet subnets.Subnet
		if json.Unmarshal(portText, &port) != nil || json.Unmarshal(subnetText, &subnet) != nil {
			return
		}
		n := &stackubev1.Network{ObjectMeta: metav1.ObjectMeta{Namespace: "blue", Name: "blue", UID: "u"}, Spec: stackubev1.NetworkSpec{NetworkID: "net"}}
		held := &cloud.HeldNetwork{Network: networks.Network{ID: "net"}, Held: []subnets.Subnet{subnet}}
		if _, pool, err := PodSubnet(n, held); err == nil {
			for _, addr := range ahead.Addresses(pool, ahead.Place{Network: "u", Node: "n"}, 2, func(netip.Addr) bool { return false }) {
				if !addr.Is4() {
					t.Errorf("address %s of pool %v", addr, pool)
				}
			}
		}
		object, err := Port(n, held, []cloud.HeldPort{port}, &port, "n")
		if err != nil {
			return
		}
		if len(object.Spec.Addresses) != 1 || port.Status == "ACTIVE" != object.Spec.Active {
			t.Fatalf("%+v", object.Spec)
		}
		prefix, err := netip.ParsePrefix(object.Spec.Addresses[0].Address)
		if err != nil || !netip.MustParsePrefix(subnet.CIDR).Contains(prefix.Addr()) {
			t.Errorf("address %+v of subnet %s: %v", object.Spec.Addresses[0], subnet.CIDR, err)
		}
	})
}

// The owner in a port's description, which everyone in the port's project can write, is rejected or names a network and a node.
func FuzzPlaceOf(f *testing.F) {
	f.Add("port/u/n1")
	f.Add("port//n1")
	f.Add("port/u/a/b")
	f.Fuzz(func(t *testing.T, owner string) {
		if at, ok := PlaceOf(owner); ok && (at.Network == "" || at.Node == "" || PortOwner(at) != owner) {
			t.Errorf("%q is of %+v", owner, at)
		}
	})
}
