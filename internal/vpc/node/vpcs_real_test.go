//go:build real

package node_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
	"weft.dev/weft/internal/openflow/ovstest"
	"weft.dev/weft/internal/ovn/ovntest"
)

// secondVPC are a second Subnet and an SNAT rule of the users' VPC, and a VPC with the same two ranges.
const secondVPC = `
---
kind: Subnet
apiVersion: kubeovn.io/v1
metadata: {name: net2}
spec: {vpc: test-vpc-1, cidrBlock: 10.0.2.0/24, namespaces: [ns1]}
---
kind: IptablesSnatRule
apiVersion: kubeovn.io/v1
metadata: {name: snat02}
spec: {eip: eip2, internalCIDR: 10.0.0.0/16}
---
kind: Vpc
apiVersion: kubeovn.io/v1
metadata: {name: test-vpc-2}
spec: {namespaces: [ns2]}
---
kind: Subnet
apiVersion: kubeovn.io/v1
metadata: {name: net3}
spec: {vpc: test-vpc-2, cidrBlock: 10.0.1.0/24, namespaces: [ns2]}
---
kind: Subnet
apiVersion: kubeovn.io/v1
metadata: {name: net4}
spec: {vpc: test-vpc-2, cidrBlock: 10.0.2.0/24, namespaces: [ns2]}
`

// The addresses of the pods of both VPCs: one and two are in one Subnet, on two nodes, far is in the other Subnet, on the node of two. The
// addresses of far differ, so that the packets of both VPCs differ at two.
const (
	addressOne    = "10.0.1.5" // that of the floating IP
	addressTwo    = "10.0.1.6"
	addressFar1   = "10.0.2.5"
	addressFar2   = "10.0.2.6"
	addressNoPod  = "10.0.1.77"
	gatewayInside = "10.0.1.254"
)

// podsOfVPC are the pods of a VPC.
type podsOfVPC struct{ one, two, far *ovntest.Pod }

// attachPods creates and attaches the pods of a namespace: one on the first node, the others on the second one. far, with the given address, is
// in the second Subnet.
func attachPods(nodes [2]*nodeUnderTest, namespace string, subnets [2]string, far string) podsOfVPC {
	attach := func(at *nodeUnderTest, name, subnet, address string) *ovntest.Pod {
		template := corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
		template.Annotations = map[string]string{kubeovn.AnnotationLogicalSwitch: subnet, kubeovn.AnnotationIPAddress: address}
		at.makePod(namespace, name, &template)
		pod, _ := at.add(namespace, name)
		ovntest.Serve(at.t, pod.NetNS, namespace+"-"+name, 7000)
		return pod
	}
	return podsOfVPC{
		one: attach(nodes[0], "one", subnets[0], addressOne), two: attach(nodes[1], "two", subnets[0], addressTwo),
		far: attach(nodes[1], "far", subnets[1], far),
	}
}

// from matches packets from an address, and pings those of them that are requests for an echo.
func from(address string) string { return "ip saddr " + address }

func pings(address string) string { return from(address) + " icmp type echo-request" }

// count counts the packets that pass a hook of the pod's kernel, for each match. The result reports whether any has passed.
func count(t *testing.T, pod *ovntest.Pod, hook string, matches ...string) func(match string) bool {
	t.Helper()
	rules := "add table ip counted; add chain ip counted " + hook + " { type filter hook " + hook + " priority -300; }"
	for _, match := range matches {
		rules += "; add rule ip counted " + hook + " " + match + " counter"
	}
	ovntest.Run(t, pod.NetNS, "nft", rules)
	return func(match string) bool {
		rules := ovntest.Run(t, pod.NetNS, "nft", "list", "chain", "ip", "counted", hook)
		_, packets, counted := strings.Cut(rules, match+" counter packets ")
		if !counted {
			t.Fatalf("packets with %s are not counted:\n%s", match, rules)
		}
		return !strings.HasPrefix(packets, "0 ")
	}
}

// forwards requires that packets from tunnels pass flows of the chassis's datapath, with the build tag vm the kernel's.
func forwards(t *testing.T, chassis *ovntest.Chassis, send func()) {
	t.Helper()
	if have := strings.TrimSpace(chassis.VSCtl("get", "bridge", "br-int", "datapath_type")); have != ovstest.Datapath {
		t.Errorf("%s: br-int is on the datapath %s, want %s", chassis.Name, have, ovstest.Datapath)
	}
	passed := regexp.MustCompile(`tunnel\(tun_id=.*eth_type\(0x0800\).*packets:[1-9]`)
	ovntest.Eventually(t, "a flow of the datapath of "+chassis.Name+" for packets from tunnels", func() bool {
		send() // a flow that no packet passes is removed
		return passed.MatchString(chassis.AppCtl("dpctl/dump-flows", ovstest.Datapath+"@ovs-"+ovstest.Datapath))
	})
}

// Two VPCs of users have the same ranges, and pods with the same addresses on two nodes: pods of one VPC reach each other within a Subnet and
// across Subnets, and those of the VPC with a NAT gateway reach the outside with its addresses. No packet passes between the
// VPCs, and none with a source address that is not the pod's. Controller, API server, OVN and agents are real, and with make vm the packets
// are the kernel's datapath's.
func TestVPCsOfUsers(t *testing.T) {
	site := ovntest.NewSite(t, 2)
	n, host, router := gatewaysOn(t, site, secondVPC)
	second := newNode(t, n.Client, site, site.Chassis[1])
	second.start()
	n.namespace("ns2")
	gateway := n.makeGateway("gw1")
	nat, _ := n.add("kube-system", gateway)
	nodes := [2]*nodeUnderTest{n, second}
	vpc1 := attachPods(nodes, "ns1", [2]string{"net1", "net2"}, addressFar1)
	vpc2 := attachPods(nodes, "ns2", [2]string{"net3", "net4"}, addressFar2)
	ovntest.Serve(t, host.NetNS, "host", 7000)
	ovntest.Serve(t, router.NetNS, "router", 7000)
	ovntest.Eventually(t, "the gateway's rules are in effect", func() bool {
		fip, snat := &kubeovn.IptablesFIPRule{}, &kubeovn.IptablesSnatRule{}
		must(t, n.Get(t.Context(), client.ObjectKey{Name: "fip01"}, fip))
		must(t, n.Get(t.Context(), client.ObjectKey{Name: "snat02"}, snat))
		return fip.Status.Ready && snat.Status.Ready
	})

	sources := []string{from(addressOne), from(addressFar1), from(addressFar2), from(addressNoPod)}
	at1, at2 := count(t, vpc1.two, "prerouting", sources...), count(t, vpc2.two, "prerouting", sources...)
	// An answer would go to the receiver's own VPC, where a pod has the same address: what counts is whether the request arrived.
	atFar1, atFar2 := count(t, vpc1.far, "prerouting", pings(addressTwo)), count(t, vpc2.far, "prerouting", pings(addressTwo))
	atGateway := count(t, nat, "prerouting", pings(addressOne), from(addressFar2))

	for _, path := range []struct {
		what     string
		from     *ovntest.Pod
		to, want string
	}{
		{"within a Subnet", vpc1.one, addressTwo, "ns1-two " + addressOne},
		{"within a Subnet of the other VPC", vpc2.one, addressTwo, "ns2-two " + addressOne},
		{"across Subnets", vpc1.one, addressFar1, "ns1-far " + addressOne},
		{"across Subnets of the other VPC", vpc2.one, addressFar2, "ns2-far " + addressOne},
		{"across Subnets, within a node", vpc1.far, addressTwo, "ns1-two " + addressFar1},
		{"across Subnets of the other VPC, within a node", vpc2.far, addressTwo, "ns2-two " + addressFar2},
		{"a floating IP, to outside", vpc1.one, "1.1.1.1", "router 192.168.100.232"},
		{"SNAT, from another node", vpc1.two, "1.1.1.1", "router 192.168.100.231"},
		{"SNAT, from another Subnet", vpc1.far, "192.168.100.10", "host 192.168.100.231"},
		{"a floating IP, from outside", host, "192.168.100.232", "ns1-one 192.168.100.10"},
	} {
		ovntest.Eventually(t, path.what, func() bool {
			have := ovntest.Ask(t, path.from.NetNS, "tcp4", path.to+":7000")
			if have != "" && have != path.want {
				t.Errorf("%s: the answer of %q, want %q", path.what, have, path.want)
			}
			return have != ""
		})
	}
	for _, chassis := range site.Chassis {
		forwards(t, chassis, func() { vpc1.one.Ping(addressTwo, "") })
	}

	for _, sender := range []*ovntest.Pod{vpc1.one, vpc2.one} {
		sender.IP("addr", "add", addressNoPod+"/32", "dev", "eth0")
		sent := count(t, sender, "postrouting", from(addressNoPod))
		if sender.Ping(addressTwo, addressNoPod) || !sent(from(addressNoPod)) {
			t.Error("a packet with a source address that is not the pod's was answered, or was not sent")
		}
	}
	mac := ovntest.Run(t, nat.NetNS, "ip", "-br", "link", "show", "dev", "eth0")
	vpc2.one.IP("neigh", "replace", gatewayInside, "lladdr", strings.Fields(mac)[2], "dev", "eth0")
	for sender, to := range map[*ovntest.Pod]string{vpc1.two: addressFar2, vpc2.two: addressFar1, vpc2.one: gatewayInside} {
		if sender.Ping(to, "") {
			t.Errorf("a pod of one VPC reaches %s of the other", to)
		}
	}
	if have := ovntest.Silent(t, vpc2.far.NetNS, "tcp4", "1.1.1.1:7000"); have != "" {
		t.Errorf("a VPC reaches the outside through the gateway of the other: %q", have)
	}
	for what, arrived := range map[string]bool{
		"a ping, at pod far of the first VPC": atFar1(pings(addressTwo)), "a ping, at pod far of the second VPC": atFar2(pings(addressTwo)),
		"a ping, at the gateway": atGateway(pings(addressOne)), "a connection to outside, at the gateway": atGateway(from(addressFar2)),
	} {
		if arrived {
			t.Error("of the other VPC arrived " + what)
		}
	}
	vpc1.two.Reaches(addressFar1)
	vpc2.two.Reaches(addressFar2)
	vpc1.one.Reaches(gatewayInside)
	for to, counted := range map[string]bool{
		addressFar1: atFar1(pings(addressTwo)), addressFar2: atFar2(pings(addressTwo)), gatewayInside: atGateway(pings(addressOne)),
	} {
		if !counted {
			t.Errorf("a ping to %s within the VPC is not counted", to)
		}
	}
	for i, arrived := range []func(string) bool{at1, at2} {
		own := []string{from(addressOne), from([]string{addressFar1, addressFar2}[i])}
		for _, source := range sources {
			if have, want := arrived(source), slices.Contains(own, source); have != want {
				t.Errorf("packets with %s arrived at pod two of VPC %d: %t, want %t", source, i+1, have, want)
			}
		}
	}

	pods := []client.ObjectKey{{Namespace: "kube-system", Name: gateway}}
	for _, name := range []string{"one", "two", "far"} {
		pods = append(pods, client.ObjectKey{Namespace: "ns1", Name: name}, client.ObjectKey{Namespace: "ns2", Name: name})
	}
	n.deleteAll(pods...)
}
