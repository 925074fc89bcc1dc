//go:build real

package crds

import (
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// kubeOVN returns manifests of kubeovn.io/v1 as users of Kube-OVN write them, and with mistakes.
func kubeOVN() []manifest {
	const api = "{apiVersion: kubeovn.io/v1, "
	vpc := func(spec string) string { return api + "kind: Vpc, metadata: {name: v}, spec: {" + spec + "}}" }
	subnet := func(spec string) string {
		return api + "kind: Subnet, metadata: {name: s}, spec: {vpc: v, " + spec + "}}"
	}
	eip := func(spec string) string {
		return api + "kind: IptablesEIP, metadata: {name: e}, spec: {natGwDp: gw1, " + spec + "}}"
	}
	snat := func(spec string) string {
		return api + "kind: IptablesSnatRule, metadata: {name: r}, spec: {" + spec + "}}"
	}
	dnat := func(spec string) string {
		return api + "kind: IptablesDnatRule, metadata: {name: r}, spec: {eip: e, internalIp: 10.0.1.5, " + spec + "}}"
	}
	ip := func(spec string) string {
		return api + "kind: IP, metadata: {name: i}, spec: {podName: p, " + spec + "}}"
	}
	routes := func(n int) string {
		return vpc("staticRoutes: [" + strings.Repeat("{cidr: 10.0.0.0/8, nextHopIP: 10.0.1.254},", n) + "]")
	}
	return []manifest{
		{"Vpc", vpc("namespaces: [ns1], staticRoutes: [{cidr: 0.0.0.0/0, nextHopIP: 10.0.1.254, policy: policyDst}]"), ""},
		{"Vpc of all fields", vpc("defaultSubnet: s, enableExternal: true, extraExternalSubnets: [x], enableBfd: true, " +
			"bfdPort: {enabled: true, ip: 10.0.0.1}, vpcPeerings: [{remoteVpc: w, localConnectIP: 169.254.0.1/30}], " +
			"policyRoutes: [{priority: 10, match: ip4.src == 10.0.1.0/24, action: reroute, nextHopIP: '10.0.1.3,10.0.1.4'}]"), ""},
		{"Vpc without a spec", api + "kind: Vpc, metadata: {name: v}}", ""},
		{"10,000 routes", routes(10000), ""},
		{"route to a name", vpc("staticRoutes: [{cidr: everywhere, nextHopIP: 10.0.1.254}]"), "must be a range such as"},
		{"next hop that is a range", vpc("staticRoutes: [{cidr: 0.0.0.0/0, nextHopIP: 10.0.1.0/24}]"), "must be one address"},
		{"route of another policy", vpc("staticRoutes: [{cidr: 0.0.0.0/0, nextHopIP: 10.0.1.1, policy: dst}]"), "policyDst"},
		{"priority of OVN's own", vpc("policyRoutes: [{priority: 32766, match: ip4, action: drop}]"), "32765"},
		{"Subnet", subnet("cidrBlock: 10.0.1.0/24, protocol: IPv4, namespaces: [ns1]"), ""},
		{"Subnet of an external network", api + "kind: Subnet, metadata: {name: s}, spec: {protocol: IPv4, provider: a.kube-system, " +
			"cidrBlock: 192.168.100.0/24, gateway: 192.168.100.1, excludeIps: [192.168.100.1..192.168.100.220]}}", ""},
		{"Subnet of two families", subnet("cidrBlock: '10.0.1.0/24,fd00::/64', gateway: '10.0.1.1,fd00::1', protocol: Dual"), ""},
		{"Subnet without a range", subnet("cidrBlock: net1"), "must be a range such as"},
		{"gateway that is a name", subnet("cidrBlock: 10.0.1.0/24, gateway: router"), "must be an address of the subnet"},
		{"gateway of another range", subnet("cidrBlock: 10.0.1.0/24, gateway: 10.0.11.1"), "gateway must be an address for a host in cidrBlock"},
		{"gateway that is the range's first address", subnet("cidrBlock: 10.0.1.7/24, gateway: 10.0.1.0"), "gateway must be an address for a host in cidrBlock"},
		{"last gateway", subnet("cidrBlock: 10.0.1.0/24, gateway: 10.0.1.254, routeTable: a-B_1.x"), ""},
		{"empty gateway and table", subnet("cidrBlock: 10.0.1.0/24, gateway: '', routeTable: ''"), ""},
		{"excluded addresses", subnet("cidrBlock: '10.0.0.0/8,fd00::/64', excludeIps: [10.0.1.5, 10.0.1.9..10.0.1.10, 10.9.0.1..10.10.0.0, fd00::1, 'fd00::9..fd00::10']"), ""},
		{"4,096 excluded ranges", subnet("cidrBlock: 10.0.0.0/8, excludeIps: [" + strings.Repeat("10.0.1.9..10.0.1.10,", 4096) + "]"), ""},
		{"excluded range that is reversed", subnet("cidrBlock: 10.0.1.0/24, excludeIps: [10.0.1.5, 10.0.1.10..10.0.1.9]"), "excludeIps[1]: Invalid value: \"string\": must be an address"},
		{"excluded range of a name", subnet("cidrBlock: 10.0.1.0/24, excludeIps: [10.0.1.5..last]"), "with the lower address first"},
		{"excluded range of three addresses", subnet("cidrBlock: 10.0.1.0/24, excludeIps: [10.0.1.5..10.0.1.6..10.0.1.7]"), "must be an address such as"},
		{"excluded range of two families", subnet("cidrBlock: 10.0.1.0/24, excludeIps: ['10.0.1.5..fd00::1']"), "must be an address such as"},
		{"excluded network", subnet("cidrBlock: 10.0.1.0/24, excludeIps: [10.0.1.0/28]"), "must be an address such as"},
		{"route table of two words", subnet("cidrBlock: 10.0.1.0/24, routeTable: a b"), "must be the name of a route table"},
		{"route table of OVN's own", subnet("cidrBlock: 10.0.1.0/24, routeTable: global"), "must be the name of a route table"},
		{"ACL of another direction", subnet("cidrBlock: 10.0.1.0/24, acls: [{direction: in, match: ip4, action: drop}]"), "from-lport"},
		{"gateway", api + "kind: VpcNatGateway, metadata: {name: gw1}, spec: {vpc: v, subnet: s, lanIp: 10.0.1.254, externalSubnets: [x], " +
			"selector: ['kubernetes.io/hostname: node1'], tolerations: [{operator: Exists}]}}", ""},
		{
			"gateway whose lanIp is a range", api + "kind: VpcNatGateway, metadata: {name: gw1}, spec: {vpc: v, subnet: s, lanIp: 10.0.1.0/24}}",
			"must be an address of the subnet",
		},
		{"EIP", eip("v4ip: 192.168.100.230"), ""},
		{"EIP without an address", eip("externalSubnet: x"), ""},
		{"EIP that is a name", eip("v4ip: any"), "must be an IPv4 address"},
		{"SNAT", snat("eip: e, internalCIDR: 10.1.1.0/24"), ""},
		{"SNAT of an address", snat("eip: e, internalCIDR: 10.1.1.5"), ""},
		{"SNAT of a name", snat("eip: e, internalCIDR: net1"), "must be an IPv4 range"},
		{"SNAT without an EIP", snat("internalCIDR: 10.1.1.0/24"), "eip"},
		{"DNAT", dnat("externalPort: '8080', internalPort: '80', protocol: TCP"), ""},
		{"DNAT of port 0", dnat("externalPort: '0', internalPort: '80'"), "externalPort"},
		{"FIP", api + "kind: IptablesFIPRule, metadata: {name: f}, spec: {eip: e, internalIp: 10.0.1.5}}", ""},
		{"FIP for a range", api + "kind: IptablesFIPRule, metadata: {name: f}, spec: {eip: e, internalIp: 10.0.1.0/24}}", "must be an IPv4 address"},
		{"IP", ip("v4IpAddress: 10.0.1.2"), ""},
		{"IP without an address", ip("v4IpAddress: ''"), ""},
		{"IP of an IPv6 address", ip("v4IpAddress: 'fd00::1'"), "must be an IPv4 address"},
		{"IP of a mapped address", ip("v4IpAddress: '::ffff:1.2.3.4'"), "v4IpAddress"},
		{"IP of a name", ip("v4IpAddress: any"), "must be an IPv4 address"},
		{"QoSPolicy", api + "kind: QoSPolicy, metadata: {name: q}, spec: {shared: true, bindingType: EIP, " +
			"bandwidthLimitRules: [{name: in, rateMax: '20', burstMax: '20', priority: 1, direction: ingress}]}}", ""},
	}
}

// Manifests of Kube-OVN's users are taken as they are, and a mistake of format is refused with the field and what would be right.
func TestKubeOVN(t *testing.T) {
	c, err := client.New(server.Config(), client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range kubeOVN() {
		t.Run(m.name, func(t *testing.T) { m.try(t, c) })
	}
}
