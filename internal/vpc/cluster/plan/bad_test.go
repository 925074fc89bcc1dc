package plan_test

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
	"weft.dev/weft/internal/ovn"
)

// hostile returns texts that would end a match, a name or an argument, or are invalid text.
func hostile() []string {
	return []string{"1) || (1", `x" || "`, "a\nb", strings.Repeat("a", 5000), "\x00", "é"}
}

// Invalid input gets a condition that names the field and what would be valid, and other objects are not affected.
func TestBadInput(t *testing.T) {
	for name, c := range map[string]struct {
		change func(w *world)
		of     func(w *world) []metav1.Condition
		want   []string
	}{
		"overlapping Subnets of one Vpc": {
			func(w *world) { w.subnet("bad", 30, "test-vpc-1", "10.0.0.0/16") }, ofSubnet("bad"),
			[]string{"Conflict", "spec.cidrBlock", "10.0.1.0/24", "net1", "choose another range"},
		},
		"an external Subnet of the same range and network": {
			func(w *world) {
				w.subnet("bad", 30, "", "192.168.100.128/25").Spec.Provider = "ovn-vpc-external-network.kube-system"
			}, ofSubnet("bad"),
			[]string{"Conflict", "spec.cidrBlock", "192.168.100.0/24", "older Subnet ovn-vpc-external-network", "choose another range"},
		},
		"a gateway outside its range": {
			func(w *world) { w.subnet("bad", 30, "test-vpc-1", "10.0.9.0/24").Spec.Gateway = "10.0.1.1" }, ofSubnet("bad"),
			[]string{"Invalid", "spec.gateway", "10.0.9.0/24", "10.0.9.1"},
		},
		"a lanIp outside": {
			func(w *world) { w.secondGateway("10.7.7.7") }, ofGateway("bad"), []string{"Invalid", "spec.lanIp", "10.0.1.0/24"},
		},
		"a lanIp that a pod has": {
			func(w *world) { w.secondGateway("10.0.1.77") }, ofGateway("bad"), []string{"Conflict", "spec.lanIp", "vpc1-pod", "another address"},
		},
		"a lanIp that another gateway has": {
			func(w *world) { w.secondGateway("10.0.1.254") }, ofGateway("bad"), []string{"Conflict", "spec.lanIp", "gw1", "another address"},
		},
		"a lanIp that is no address": {
			func(w *world) { w.secondGateway("gateway") }, ofGateway("bad"), []string{"Invalid", "spec.lanIp", "not an address", "10.0.1.254"},
		},
		"a lanIp that is the router's": {
			func(w *world) { w.secondGateway("10.0.1.1") }, ofGateway("bad"), []string{"Invalid", "spec.lanIp", "router", "10.0.1.0/24"},
		},
		"a next hop that is no address": {
			func(w *world) { w.badVPC(kubeovn.StaticRoute{CIDR: "10.1.0.0/16", NextHopIP: "gateway"}) }, ofVPC("bad"),
			[]string{"Invalid", "spec.staticRoutes[0].nextHopIP", "not an address", "10.0.1.254"},
		},
		"a next hop that is no neighbour": {
			func(w *world) { w.badVPC(kubeovn.StaticRoute{CIDR: "10.1.0.0/16", NextHopIP: "172.16.0.1"}) }, ofVPC("bad"),
			[]string{"Invalid", "spec.staticRoutes[0].nextHopIP", "in no subnet"},
		},
		"a peering that one side declares": {
			func(w *world) {
				w.vpc("bad", 30, kubeovn.VpcSpec{VpcPeerings: []kubeovn.VpcPeering{{RemoteVpc: "test-vpc-1", LocalConnectIP: "169.254.0.1/30"}}})
			},
			ofVPC("bad"),
			[]string{"Invalid", "spec.vpcPeerings[0].remoteVpc", "does not declare the peering", "{remoteVpc: bad"},
		},
		"a peering with itself": {
			func(w *world) {
				w.vpc("bad", 30, kubeovn.VpcSpec{VpcPeerings: []kubeovn.VpcPeering{{RemoteVpc: "bad", LocalConnectIP: "169.254.0.1/30"}}})
			},
			ofVPC("bad"),
			[]string{"Invalid", "spec.vpcPeerings[0].remoteVpc", "itself", "another VPC"},
		},
		"a second FIP on an EIP": {
			func(w *world) { w.fip("bad", 30, "eip3", "10.0.1.9") }, ofFIP("bad"), []string{"Conflict", "spec.eip", "fip01", "same eip"},
		},
		"a FIP on an EIP with DNAT": {
			func(w *world) { w.fip("bad", 30, "eip1", "10.0.1.9") }, ofFIP("bad"), []string{"Conflict", "spec.eip", "web", "use another EIP"},
		},
		"DNAT on an EIP with a FIP": {
			func(w *world) {
				w.dnats["bad"] = &kubeovn.IptablesDnatRule{ObjectMeta: created("bad", 30), Spec: kubeovn.IptablesDnatRuleSpec{
					EIP: "eip3", ExternalPort: "80", InternalIP: "10.0.1.6", InternalPort: "80", Protocol: "tcp",
				}}
			},
			func(w *world) []metav1.Condition { return w.dnats["bad"].Status.Conditions },
			[]string{"Conflict", "spec.eip", "fip01", "use another EIP"},
		},
		"a floating IP of an address that another one has": {
			func(w *world) { w.fip("bad", 30, "eip2", "10.0.1.5") }, ofFIP("bad"), []string{"Conflict", "spec.internalIp", "fip01"},
		},
		"an EIP in no external Subnet": {
			func(w *world) { w.eip("bad", 30, "").Spec.ExternalSubnet = "none" }, ofEIP("bad"), []string{"Missing", "spec.externalSubnet", `"none"`, "create it"},
		},
		"a gateway of the default VPC": {
			func(w *world) {
				w.secondGateway("10.0.1.200")
				w.gateways["bad"].Spec.Vpc = kubeovn.DefaultVpc
			}, ofGateway("bad"), []string{"Invalid", "spec.vpc", "name a Vpc"},
		},
		"a peering with the default VPC": {
			func(w *world) {
				w.vpc("bad", 30, kubeovn.VpcSpec{VpcPeerings: []kubeovn.VpcPeering{{RemoteVpc: kubeovn.DefaultVpc, LocalConnectIP: "169.254.0.1/30"}}})
			},
			ofVPC("bad"),
			[]string{"Invalid", "spec.vpcPeerings[0].remoteVpc", "name another VPC"},
		},
		"an EIP outside its Subnet": {
			func(w *world) { w.eip("bad", 30, "10.0.1.9") }, ofEIP("bad"), []string{"Invalid", "spec.v4ip", "192.168.100.0/24"},
		},
		"an EIP that is taken": {
			func(w *world) { w.eip("bad", 30, "192.168.100.231") }, ofEIP("bad"), []string{"Conflict", "spec.v4ip", "eip2", "another address"},
		},
		"a definition of another type": {
			func(w *world) { w.secondOutside(`{"type":"ipvlan","master":"ens37"}`) }, ofGateway("bad"), []string{"Invalid", "spec.config.type", "ipvlan", "write macvlan"},
		},
		"a definition that is missing": {
			func(w *world) { w.secondOutside("") }, ofGateway("bad"), []string{"Missing", "spec.provider", "other.kube-system", "create it"},
		},
		"a definition with broken JSON": {
			func(w *world) { w.secondOutside(`{"type":"macvlan",`) }, ofGateway("bad"), []string{"Invalid", "spec.config", "not JSON"},
		},
		"a definition of a list of plugins": {
			func(w *world) { w.secondOutside(`{"plugins":[{"type":"macvlan","master":"ens37"}]}`) }, ofGateway("bad"), []string{"Invalid", "spec.config.plugins", "one macvlan"},
		},
		"a definition without an interface": {
			func(w *world) { w.secondOutside(`{"type":"macvlan"}`) }, ofGateway("bad"), []string{"Invalid", "spec.config.master", "ens37"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := settledUsers(t)
			others, rows := w.conditions(), w.ports()
			c.change(w)
			for range 20 {
				if !w.step(t) {
					break
				}
			}
			have := condition(c.of(w), "Ready")
			for _, words := range c.want {
				if !strings.Contains(have, words) {
					t.Errorf("condition %q, want %q in it", have, words)
				}
			}
			now, nowRows := w.conditions(), w.ports()
			for line := range strings.SplitSeq(others, "\n") {
				if !strings.Contains(now, line) {
					t.Errorf("another object said %q; now:\n%s", line, now)
				}
			}
			for line := range strings.SplitSeq(rows, "\n") {
				if !strings.Contains(nowRows, line) {
					t.Errorf("a row of another object is gone: %s", line)
				}
			}
		})
	}
}

// Whatever text is in a field that becomes a match or a name, no row contains it, its object reports it, and other objects are not
// affected.
func TestHostileStrings(t *testing.T) {
	for _, text := range hostile() {
		for field, change := range map[string]func(v *kubeovn.VpcSpec, s *kubeovn.SubnetSpec){
			"spec.staticRoutes[0].cidr":       func(v *kubeovn.VpcSpec, _ *kubeovn.SubnetSpec) { v.StaticRoutes[0].CIDR = text },
			"spec.staticRoutes[0].nextHopIP":  func(v *kubeovn.VpcSpec, _ *kubeovn.SubnetSpec) { v.StaticRoutes[0].NextHopIP = text },
			"spec.staticRoutes[0].policy":     func(v *kubeovn.VpcSpec, _ *kubeovn.SubnetSpec) { v.StaticRoutes[0].Policy = text },
			"spec.policyRoutes[0].match":      func(v *kubeovn.VpcSpec, _ *kubeovn.SubnetSpec) { v.PolicyRoutes[0].Match = text },
			"spec.policyRoutes[0].action":     func(v *kubeovn.VpcSpec, _ *kubeovn.SubnetSpec) { v.PolicyRoutes[0].Action = text },
			"spec.policyRoutes[0].nextHopIP":  func(v *kubeovn.VpcSpec, _ *kubeovn.SubnetSpec) { v.PolicyRoutes[0].NextHopIP = text },
			"spec.staticRoutes[0].routeTable": func(v *kubeovn.VpcSpec, _ *kubeovn.SubnetSpec) { v.StaticRoutes[0].RouteTable = text },
			"spec.vpcPeerings[0].remoteVpc": func(v *kubeovn.VpcSpec, _ *kubeovn.SubnetSpec) {
				v.VpcPeerings = []kubeovn.VpcPeering{{RemoteVpc: text, LocalConnectIP: "169.254.0.1/30"}}
			},
			"spec.vpc":        func(_ *kubeovn.VpcSpec, s *kubeovn.SubnetSpec) { s.Vpc = text },
			"spec.routeTable": func(_ *kubeovn.VpcSpec, s *kubeovn.SubnetSpec) { s.RouteTable = text },
			"spec.vpcPeerings[0].localConnectIP": func(v *kubeovn.VpcSpec, _ *kubeovn.SubnetSpec) {
				v.VpcPeerings = []kubeovn.VpcPeering{{RemoteVpc: "test-vpc-1", LocalConnectIP: text}}
			},
			"spec.cidrBlock":         func(_ *kubeovn.VpcSpec, s *kubeovn.SubnetSpec) { s.CIDRBlock = text },
			"spec.gateway":           func(_ *kubeovn.VpcSpec, s *kubeovn.SubnetSpec) { s.Gateway = text },
			"spec.excludeIps[0]":     func(_ *kubeovn.VpcSpec, s *kubeovn.SubnetSpec) { s.ExcludeIps = []string{text} },
			"spec.allowSubnets[0]":   func(_ *kubeovn.VpcSpec, s *kubeovn.SubnetSpec) { s.AllowSubnets = []string{text} },
			"spec.acls[0].match":     func(_ *kubeovn.VpcSpec, s *kubeovn.SubnetSpec) { s.Acls[0].Match = text },
			"spec.acls[0].action":    func(_ *kubeovn.VpcSpec, s *kubeovn.SubnetSpec) { s.Acls[0].Action = text },
			"spec.acls[0].direction": func(_ *kubeovn.VpcSpec, s *kubeovn.SubnetSpec) { s.Acls[0].Direction = text },
		} {
			w := settledUsers(t)
			others := w.conditions()
			w.badVPC(kubeovn.StaticRoute{CIDR: "10.1.0.0/16", NextHopIP: "10.8.0.7"})
			v, s := w.vpcs["bad"], w.subnets["bad"]
			v.Spec.PolicyRoutes = []kubeovn.PolicyRoute{{Priority: 7, Match: "ip4", Action: "reroute", NextHopIP: "10.8.0.7"}}
			s.Spec.Acls = []kubeovn.ACL{{Direction: "to-lport", Priority: 7, Match: "ip4", Action: "allow"}}
			change(&v.Spec, &s.Spec)
			for range 20 {
				if !w.step(t) {
					break
				}
			}
			have := condition(v.Status.Conditions, "Ready") + condition(s.Status.Conditions, "Ready")
			if !strings.Contains(have, field) {
				t.Errorf("%s: %.40q: no condition names it: %s", field, text, have)
			}
			for key, row := range w.database.Rows() {
				if strings.Contains(row.String(), text) {
					t.Errorf("%s: %.40q: row %s has it", field, text, key)
				}
			}
			if now := w.conditions(); now != others {
				t.Errorf("%s: %.40q: others were\n%s\nare\n%s", field, text, others, now)
			}
		}
	}
}

// An IP object without an IPv4 address is ignored, its Subnet reports it, and other Subnets are not affected. Once it is deleted, its pod gets
// an address.
func TestBadAddressOfIP(t *testing.T) {
	for _, address := range []string{"fd00::1", "::ffff:10.0.1.2", "10.0.1", "nonsense", ""} {
		t.Run(address, func(t *testing.T) {
			w := newWorld(t)
			w.vpc("v", 1, kubeovn.VpcSpec{})
			w.subnet("s", 2, "v", "10.0.1.0/24")
			w.subnet("other", 3, "v", "10.0.2.0/24")
			w.pod("bad", "s", "")
			w.settle(t)
			w.ips["bad.ns1"].Spec.V4IPAddress = address
			w.pod("beside", "s", "")
			w.pod("good", "other", "")
			for range 20 {
				if !w.step(t) {
					break
				}
			}
			if have := condition(w.subnets["s"].Status.Conditions, "Ready"); !strings.Contains(have, "spec.v4IpAddress") ||
				!strings.Contains(have, "ns1/bad") || !strings.Contains(have, "delete the IP object") {
				t.Errorf("the Subnet reports %q", have)
			}
			if have := condition(w.subnets["other"].Status.Conditions, "Ready"); strings.Contains(have, "v4IpAddress") {
				t.Errorf("the other Subnet reports %q", have)
			}
			rows := w.ports()
			for _, name := range []string{"beside.ns1", "good.ns1"} {
				if ip := w.ips[name]; ip == nil || !strings.Contains(rows, ip.Spec.LogicalPort) {
					t.Errorf("%s has no address, or no row: %v", name, ip)
				}
			}
			delete(w.ips, "bad.ns1")
			w.settle(t)
			if w.ips["bad.ns1"] == nil {
				t.Errorf("the pod waits: %s", w.waiting["ns1/bad"])
			}
			if have := condition(w.subnets["s"].Status.Conditions, "Ready"); strings.Contains(have, "v4IpAddress") {
				t.Errorf("the Subnet still reports %q", have)
			}
		})
	}
}

// Whatever text is in an annotation of a pod, no row contains it, the pod waits with a short reason, and other pods get their addresses.
func TestHostileAnnotations(t *testing.T) {
	for _, text := range hostile() {
		for _, annotation := range []string{
			kubeovn.AnnotationLogicalSwitch, kubeovn.AnnotationIPAddress, kubeovn.AnnotationMACAddress, kubeovn.AnnotationIPPool,
		} {
			w := newWorld(t)
			w.vpc("v", 1, kubeovn.VpcSpec{})
			w.subnet("s", 2, "v", "10.0.1.0/24")
			w.pod("bad", "s", "").Annotations[annotation] = text
			w.pod("good", "s", "")
			w.settle(t)
			if why := w.waiting["ns1/bad"]; w.ips["bad.ns1"] != nil || why == "" || len(why) > 1024 || !utf8.ValidString(why) {
				t.Errorf("%s: %.40q: the pod has %v, and waits because %.200q", annotation, text, w.ips["bad.ns1"], why)
			}
			if w.ips["good.ns1"] == nil {
				t.Errorf("%s: %.40q: the other pod waits: %s", annotation, text, w.waiting["ns1/good"])
			}
			for key, row := range w.database.Rows() {
				if strings.Contains(row.String(), text) {
					t.Errorf("%s: %.40q: row %s has it", annotation, text, key)
				}
			}
		}
	}
}

// Of ten thousand routes of one Vpc all are in effect except the invalid one, which its condition names. If there are too many routes by
// source, the condition reports it, and their packets are dropped.
func TestManyRoutes(t *testing.T) {
	const routes = 10_000
	for name, c := range map[string]struct {
		source func(i int) bool
		// rows is the number of rows of routes and policies.
		rows int
		want string
	}{
		"by destination": {func(int) bool { return false }, routes - 1, "spec.staticRoutes[7777].nextHopIP"},
		"by source":      {func(int) bool { return true }, routes - 1 + 2, "spec.staticRoutes[7777].nextHopIP"}, // with default route and drop
		"by both":        {func(i int) bool { return i%2 == 0 }, routes/2 - 1, "use fewer routes by source"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			spec := kubeovn.VpcSpec{}
			for i := range routes {
				route := kubeovn.StaticRoute{CIDR: fmt.Sprintf("172.%d.%d.0/28", 16+i>>8, i&255), NextHopIP: "10.0.1.254"}
				if c.source(i) {
					route.Policy = "policySrc"
				}
				spec.StaticRoutes = append(spec.StaticRoutes, route)
			}
			spec.StaticRoutes[7777].NextHopIP = "nowhere"
			w.vpc("v", 1, spec)
			w.subnet("s", 2, "v", "10.0.1.0/24")
			w.pod("p", "s", "")
			w.settle(t)
			count := 0
			for key := range w.database.Rows() {
				if key.Table == ovn.Route || key.Table == ovn.Policy {
					count++
				}
			}
			if have := condition(w.vpcs["v"].Status.Conditions, "Ready"); count != c.rows || !strings.Contains(have, c.want) {
				t.Errorf("%d rows, want %d; condition %q, want %q in it", count, c.rows, have, c.want)
			}
			if w.ips["p.ns1"] == nil {
				t.Errorf("the pod waits: %v", w.waiting)
			}
		})
	}
}

// The cost of an address list is limited, whatever its text, and the pod's reason is short.
func TestLongPool(t *testing.T) {
	for name, c := range map[string]struct{ pool, want string }{
		"nothing but commas": {strings.Repeat(",", 262_000), "has 262001 addresses; write 256 at most"},
		"one long word":      {strings.Repeat("é", 131_000), "is not an address"},
		"none that is free":  {"10.0.1.1" + strings.Repeat(",10.0.1.1", 255), "none of the 255 other addresses is free either"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.vpc("v", 1, kubeovn.VpcSpec{})
			w.subnet("s", 2, "v", "10.0.1.0/24")
			w.pod("bad", "s", "").Annotations[kubeovn.AnnotationIPPool] = c.pool
			w.pod("good", "s", "").Annotations[kubeovn.AnnotationIPPool] = "10.0.1.1,10.0.1.9"
			w.settle(t)
			if why := w.waiting["ns1/bad"]; !strings.Contains(why, c.want) || len(why) > 1024 {
				t.Errorf("the pod waits because (%d bytes) %.200q, want %q in it", len(why), why, c.want)
			}
			if ip := w.ips["good.ns1"]; ip == nil || ip.Spec.V4IPAddress != "10.0.1.9" {
				t.Errorf("the other pod has %v", ip)
			}
		})
	}
}

// An external Subnet that overlaps an older one of its network gives no address, until the older one is gone. One of another network does. Two
// NetworkAttachmentDefinitions of one device are one network, and so are two of which one is not known.
func TestExternalSubnetsOfOneNetwork(t *testing.T) {
	w := newWorld(t)
	for i, name := range []string{"older", "younger", "elsewhere"} {
		s := w.subnet(name, i+1, "", "192.168.7.0/24")
		s.Spec.Provider = map[bool]string{true: "b.kube-system", false: "a.kube-system"}[name == "elsewhere"]
	}
	check := func(when string, want map[string]string) {
		t.Helper()
		w.settle(t)
		for name, reason := range want {
			ready := meta.FindStatusCondition(w.subnets[name].Status.Conditions, kubeovn.ConditionReady)
			if ready == nil || ready.Reason != reason {
				t.Errorf("%s, Subnet %s is %+v, want reason %s", when, name, ready, reason)
			}
		}
	}
	check("with the older one", map[string]string{"older": "Ready", "younger": "Conflict", "elsewhere": "Conflict"})
	w.definitions["a.kube-system"] = natDefinition
	check("with one definition", map[string]string{"older": "Ready", "younger": "Conflict", "elsewhere": "Conflict"})
	if have := condition(w.subnets["elsewhere"].Status.Conditions, "Ready"); !strings.Contains(have, "no valid NetworkAttachmentDefinition b.kube-system") {
		t.Errorf("condition %s", have)
	}
	w.definitions["b.kube-system"] = strings.ReplaceAll(natDefinition, "ens37", "ens38")
	check("with another device", map[string]string{"older": "Ready", "younger": "Conflict", "elsewhere": "Ready"})
	w.definitions["b.kube-system"] = natDefinition
	check("with the same device", map[string]string{"older": "Ready", "younger": "Conflict", "elsewhere": "Conflict"})
	if have := condition(w.subnets["elsewhere"].Status.Conditions, "Ready"); !strings.Contains(have, "older Subnet older, on the same device ens37") {
		t.Errorf("condition %s", have)
	}
	delete(w.definitions, "a.kube-system")
	check("without a definition", map[string]string{"older": "Ready", "younger": "Conflict", "elsewhere": "Conflict"})
	delete(w.subnets, "older")
	check("without it", map[string]string{"younger": "Ready", "elsewhere": "Conflict"})
	delete(w.subnets, "younger")
	check("alone", map[string]string{"elsewhere": "Ready"})
}

// Whatever text makes a pod wait, its reason is short and valid for the API server.
func TestLongReason(t *testing.T) {
	w := newWorld(t)
	w.vpc("v", 1, kubeovn.VpcSpec{})
	w.subnet("s", 2, "v", "10.0.1.0/24").Spec.Gateway = strings.Repeat("é", 30_000)
	w.pod("p", "s", "")
	w.settle(t)
	if why := w.waiting["ns1/p"]; why == "" || len(why) > 1024 || !utf8.ValidString(why) {
		t.Errorf("the pod waits because (%d bytes) %q", len(why), why)
	}
}

// A condition is valid for the API server, however many problems there are.
func TestLongCondition(t *testing.T) {
	w := newWorld(t)
	spec := kubeovn.VpcSpec{StaticRoutes: []kubeovn.StaticRoute{{CIDR: "0.0.0.0/0", NextHopIP: "10.0.1.254"}}}
	for i := range 2000 {
		spec.StaticRoutes = append(spec.StaticRoutes, kubeovn.StaticRoute{CIDR: fmt.Sprintf("172.16.%d.%d/32", i>>8, i&255), NextHopIP: "10.0.1.254", Policy: "policySrc"})
	}
	w.vpc("v", 1, spec)
	w.subnet("s", 2, "v", "10.0.1.0/24")
	w.settle(t)
	c := meta.FindStatusCondition(w.vpcs["v"].Status.Conditions, kubeovn.ConditionShadowed)
	if c == nil || c.Status != metav1.ConditionTrue || len(c.Message) < 30_000 || len(c.Message) > 32768 || !utf8.ValidString(c.Message) {
		t.Errorf("the condition has %d bytes: %.100q", len(c.Message), c.Message)
	}
}

func ofVPC(name string) func(*world) []metav1.Condition {
	return func(w *world) []metav1.Condition { return w.vpcs[name].Status.Conditions }
}

func ofSubnet(name string) func(*world) []metav1.Condition {
	return func(w *world) []metav1.Condition { return w.subnets[name].Status.Conditions }
}

func ofGateway(name string) func(*world) []metav1.Condition {
	return func(w *world) []metav1.Condition { return w.gateways[name].Status.Conditions }
}

func ofEIP(name string) func(*world) []metav1.Condition {
	return func(w *world) []metav1.Condition { return w.eips[name].Status.Conditions }
}

func ofFIP(name string) func(*world) []metav1.Condition {
	return func(w *world) []metav1.Condition { return w.fips[name].Status.Conditions }
}

// badVPC creates a Vpc "bad" with a route, and a Subnet of it.
func (w *world) badVPC(route kubeovn.StaticRoute) {
	w.vpc("bad", 30, kubeovn.VpcSpec{StaticRoutes: []kubeovn.StaticRoute{route}})
	w.subnet("bad", 31, "bad", "10.8.0.0/24")
}

// secondGateway creates a gateway "bad" in addition to that of the users.
func (w *world) secondGateway(lanIP string) {
	w.gateways["bad"] = &kubeovn.VpcNatGateway{ObjectMeta: created("bad", 30), Spec: kubeovn.VpcNatGatewaySpec{Vpc: "test-vpc-1", Subnet: "net1", LanIP: lanIP}}
}

// secondOutside creates a gateway "bad" in a separate external Subnet, whose NetworkAttachmentDefinition has the configuration; if empty,
// there is no definition.
func (w *world) secondOutside(config string) {
	w.secondGateway("10.0.1.200")
	w.gateways["bad"].Spec.ExternalSubnets = []string{"other"}
	w.subnet("other", 29, "", "192.168.7.0/24").Spec.Provider = "other.kube-system"
	if config != "" {
		w.definitions["other.kube-system"] = config
	}
}
