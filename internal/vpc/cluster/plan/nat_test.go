package plan_test

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
	"weft.dev/weft/internal/vpc/cluster/plan"
	"weft.dev/weft/internal/vpc/nat"
	"weft.dev/weft/internal/vpc/objects"
)

const natDefinition = `{"cniVersion":"0.3.0","type":"macvlan","master":"ens37","mode":"bridge","ipam":{"type":"kube-ovn"}}`

// gatewaysOf executes the gateways' part of a plan, and does what kubelets and agents then do. It reports whether anything changed.
func (w *world) gatewaysOf(t fataler, p *plan.Plan) bool {
	t.Helper()
	acted := len(p.Updates)+len(p.Statuses)+len(p.CreateWorkloads)+len(p.UpdateWorkloads)+len(p.DeleteWorkloads) > 0
	for _, object := range p.Updates {
		switch o := object.(type) {
		case *kubeovn.VpcNatGateway:
			w.gateways[o.Name].Finalizers = o.Finalizers
		case *kubeovn.IptablesEIP:
			w.eips[o.Name].Finalizers = o.Finalizers
		default:
			t.Fatalf("an update of %T", object)
		}
	}
	for _, object := range p.Statuses {
		switch o := object.(type) {
		case *kubeovn.VpcNatGateway:
			w.gateways[o.Name].Status = o.Status
		case *kubeovn.IptablesEIP:
			w.eips[o.Name].Status = o.Status
		case *kubeovn.IptablesSnatRule:
			w.snats[o.Name].Status = o.Status
		case *kubeovn.IptablesFIPRule:
			w.fips[o.Name].Status = o.Status
		case *kubeovn.IptablesDnatRule:
			w.dnats[o.Name].Status = o.Status
		}
	}
	for _, set := range p.DeleteWorkloads {
		delete(w.workloads, set.Name)
		delete(w.pods, set.Name+"-0")
	}
	for _, set := range append(p.CreateWorkloads, p.UpdateWorkloads...) {
		w.workloads[set.Name] = set
		pod := &corev1.Pod{ObjectMeta: created(set.Name+"-0", 60), Spec: corev1.PodSpec{NodeName: "node1"}}
		w.replaced++ // a StatefulSet whose template changes replaces its pod
		pod.UID = types.UID(fmt.Sprint("uid-", pod.Name, w.replaced))
		pod.Namespace, pod.Annotations = kubeovn.ConfigNamespace, set.Spec.Template.Annotations
		w.pods[pod.Name] = pod
	}
	compiled := nat.Compile(w.natObjects())
	for name, g := range compiled.Gateways { // the agents
		pod := w.pods[nat.PodName(name)]
		if pod == nil || w.ips[objects.PodKey(pod.Namespace, pod.Name)] == nil {
			continue
		}
		report := corev1.PodCondition{Type: nat.Condition, Status: corev1.ConditionTrue, Message: g.Hash}
		if g.Hash == "" {
			report.Message = compiled.Required(name).Hash()
		}
		if has := pod.Status.Conditions; g.Hash == "" && (len(has) == 0 || has[0].Status == corev1.ConditionFalse) { // its ADD fails
			report.Status, report.Reason = corev1.ConditionFalse, nat.ReasonNothing
		}
		reports := []corev1.PodCondition{report}
		if !slices.Equal(pod.Status.Conditions, reports) {
			pod.Status.Conditions, acted = reports, true
		}
	}
	maps.DeleteFunc(w.gateways, func(_ string, g *kubeovn.VpcNatGateway) bool {
		return g.DeletionTimestamp != nil && len(g.Finalizers) == 0
	})
	maps.DeleteFunc(w.eips, func(_ string, e *kubeovn.IptablesEIP) bool {
		return e.DeletionTimestamp != nil && len(e.Finalizers) == 0
	})
	return acted
}

func (w *world) natObjects() *nat.Objects {
	o := w.objects()
	return &nat.Objects{
		Vpcs: o.Vpcs, Subnets: o.Subnets, Gateways: o.Gateways, EIPs: o.EIPs, SNATs: o.SNATs, DNATs: o.DNATs, FIPs: o.FIPs, Definitions: o.Definitions,
	}
}

func (w *world) eip(name string, second int, address string) *kubeovn.IptablesEIP {
	w.eips[name] = &kubeovn.IptablesEIP{ObjectMeta: created(name, second), Spec: kubeovn.IptablesEIPSpec{NatGwDp: "gw1", V4ip: address}}
	return w.eips[name]
}

func (w *world) snat(name string, second int, eip, cidr string) {
	w.snats[name] = &kubeovn.IptablesSnatRule{ObjectMeta: created(name, second), Spec: kubeovn.IptablesSnatRuleSpec{EIP: eip, InternalCIDR: cidr}}
}

func (w *world) fip(name string, second int, eip, address string) {
	w.fips[name] = &kubeovn.IptablesFIPRule{ObjectMeta: created(name, second), Spec: kubeovn.IptablesFIPRuleSpec{EIP: eip, InternalIP: address}}
}

// users are the objects of a user with a gateway, each created by one call.
func (w *world) users() []func() {
	return []func(){
		func() {
			w.vpc("test-vpc-1", 1, kubeovn.VpcSpec{
				Namespaces: []string{"ns1"}, StaticRoutes: []kubeovn.StaticRoute{{CIDR: "0.0.0.0/0", NextHopIP: "10.0.1.254", Policy: "policyDst"}},
			})
		},
		func() { w.subnet("net1", 2, "test-vpc-1", "10.0.1.0/24") },
		func() {
			s := w.subnet("ovn-vpc-external-network", 3, "", "192.168.100.0/24")
			s.Spec.Provider, s.Spec.Gateway = "ovn-vpc-external-network.kube-system", "192.168.100.1"
			s.Spec.ExcludeIps = []string{"192.168.100.1..192.168.100.220"}
		},
		func() { w.definitions["ovn-vpc-external-network.kube-system"] = natDefinition },
		func() { w.config.Enabled = true },
		func() { w.config.Image = "docker.io/kubeovn/vpc-nat-gateway:v1.12.4" },
		func() {
			w.gateways["gw1"] = &kubeovn.VpcNatGateway{ObjectMeta: created("gw1", 4), Spec: kubeovn.VpcNatGatewaySpec{
				Vpc: "test-vpc-1", Subnet: "net1", LanIP: "10.0.1.254", ExternalSubnets: []string{"ovn-vpc-external-network"},
			}}
		},
		func() { w.eip("eip1", 5, "192.168.100.230") },
		func() { w.eip("eip2", 6, "192.168.100.231") },
		func() { w.eip("eip3", 7, "192.168.100.232") },
		func() { w.snat("snat01", 8, "eip2", "10.1.1.0/24") },
		func() { w.snat("snat02", 9, "eip1", "10.0.1.0/24") },
		func() { w.fip("fip01", 10, "eip3", "10.0.1.5") },
		func() {
			w.dnats["web"] = &kubeovn.IptablesDnatRule{ObjectMeta: created("web", 11), Spec: kubeovn.IptablesDnatRuleSpec{
				EIP: "eip1", ExternalPort: "8080", Protocol: "TCP", InternalIP: "10.0.1.6", InternalPort: "80",
			}}
		},
		func() { w.pod("vpc1-pod", "net1", "10.0.1.77") },
	}
}

// settledUsers returns a world with all objects of a user with a gateway, in which everything is in effect.
func settledUsers(t fataler) *world {
	t.Helper()
	w := newWorld(t)
	for _, make := range w.users() {
		make()
	}
	w.settle(t)
	return w
}

func condition(conditions []metav1.Condition, kind string) string {
	if c := meta.FindStatusCondition(conditions, kind); c != nil {
		return string(c.Status) + " " + c.Reason + ": " + c.Message
	}
	return ""
}

// conditions returns the conditions of all objects of gateways.
func (w *world) conditions() string {
	var lines []string
	add := func(name string, ready bool, ip string, conditions []metav1.Condition) {
		lines = append(lines, fmt.Sprintf("%s ready=%t %s %s %s", name, ready, ip, condition(conditions, "Ready"), condition(conditions, "Matched")))
	}
	for name, o := range w.gateways {
		add("gateway "+name, o.Status.Ready, o.Status.Hash, o.Status.Conditions)
	}
	for name, o := range w.eips {
		add("eip "+name, o.Status.Ready, o.Status.IP+" "+o.Status.Nat, o.Status.Conditions)
	}
	for name, o := range w.snats {
		add("snat "+name, o.Status.Ready, o.Status.V4ip, o.Status.Conditions)
	}
	for name, o := range w.fips {
		add("fip "+name, o.Status.Ready, o.Status.V4ip, o.Status.Conditions)
	}
	for name, o := range w.dnats {
		add("dnat "+name, o.Status.Ready, o.Status.V4ip, o.Status.Conditions)
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// alter changes one of the users' objects, if it exists, to something else, valid or not.
func (w *world) alter(r *rapid.T) {
	r.Helper()
	for _, c := range []struct {
		object plan.Object
		change func()
	}{
		{w.vpcs["test-vpc-1"], func() { w.vpcs["test-vpc-1"].Spec.StaticRoutes = nil }},
		{w.subnets["net1"], func() {
			s := &w.subnets["net1"].Spec
			s.ExcludeIps, s.Private = []string{"10.0.1.5", "10.0.1.77"}, true
		}},
		{w.subnets["ovn-vpc-external-network"], func() { w.subnets["ovn-vpc-external-network"].Spec.Gateway = "192.168.100.2" }},
		{w.gateways["gw1"], func() {
			w.gateways["gw1"].Spec.LanIP = rapid.SampledFrom([]string{"10.0.1.200", "10.0.1.77", "10.9.9.9"}).Draw(r, "lanIp")
		}},
		{w.eips["eip2"], func() { w.eips["eip2"].Spec.NatGwDp = "none" }},
		{w.snats["snat02"], func() {
			w.snats["snat02"].Spec.InternalCIDR = rapid.SampledFrom([]string{"10.0.0.0/8", "10.1.1.0/24", "?"}).Draw(r, "internalCIDR")
		}},
		{w.fips["fip01"], func() { w.fips["fip01"].Spec.EIP = rapid.SampledFrom([]string{"eip1", "eip2", "none"}).Draw(r, "eip") }},
		{w.dnats["web"], func() { w.dnats["web"].Spec.EIP, w.dnats["web"].Spec.Protocol = "eip3", "udp" }},
	} {
		if !reflect.ValueOf(c.object).IsNil() && rapid.IntRange(0, 3).Draw(r, "altered") == 0 {
			c.change()
			c.object.SetGeneration(c.object.GetGeneration() + 1)
		}
	}
	if name := "ovn-vpc-external-network.kube-system"; w.definitions[name] != "" && rapid.IntRange(0, 3).Draw(r, "definition") == 0 {
		w.definitions[name] = rapid.SampledFrom([]string{"{", `{"type":"macvlan","master":"ens38"}`}).Draw(r, "content")
	}
}

// restore gives the objects the specifications that they have in another world.
func (w *world) restore(from *world) {
	restored := func(object, final plan.Object) {
		if !reflect.DeepEqual(reflect.ValueOf(object).Elem().FieldByName("Spec").Interface(), reflect.ValueOf(final).Elem().FieldByName("Spec").Interface()) {
			reflect.ValueOf(object).Elem().FieldByName("Spec").Set(reflect.ValueOf(final.DeepCopyObject()).Elem().FieldByName("Spec"))
			object.SetGeneration(object.GetGeneration() + 1)
		}
	}
	restored(w.vpcs["test-vpc-1"], from.vpcs["test-vpc-1"])
	restored(w.gateways["gw1"], from.gateways["gw1"])
	restored(w.eips["eip2"], from.eips["eip2"])
	restored(w.snats["snat02"], from.snats["snat02"])
	restored(w.fips["fip01"], from.fips["fip01"])
	restored(w.dnats["web"], from.dnats["web"])
	for name, s := range w.subnets {
		restored(s, from.subnets[name])
	}
	w.definitions = maps.Clone(from.definitions)
}

// Every order of creating, changing and deleting the objects of a gateway, with the ConfigMaps removed and added in between, ends in the same
// state: all rules are in effect, and after the last deletion nothing is left.
func TestGatewayOrders(t *testing.T) {
	first := newWorld(t)
	for _, make := range first.users() {
		make()
	}
	first.settle(t)
	wantRows, want := first.ports(), first.conditions()
	for line := range strings.SplitSeq(want, "\n") {
		if !strings.Contains(line, "ready=true") {
			t.Errorf("not in effect: %s", line)
		}
	}
	if !strings.Contains(want, "spec.internalCIDR overlaps no Subnet of Vpc test-vpc-1") || !strings.Contains(want, "net1 (10.0.1.0/24)") {
		t.Errorf("an SNAT rule that matches nothing: %s", want)
	}
	if !strings.Contains(want, "False NoSubnet: ") || !strings.Contains(want, "True Matched: ") {
		t.Errorf("condition Matched: %s", want)
	}
	if g := first.gateways["gw1"].Status; g.IP != "192.168.100.221" || first.pods["vpc-nat-gw-gw1-0"] == nil {
		t.Errorf("the gateway: %+v", g)
	}
	if ip := first.ips["vpc-nat-gw-gw1-0.kube-system"]; ip == nil || ip.Spec.V4IPAddress != "10.0.1.254" || ip.Spec.NATGateway != "gw1" {
		t.Errorf("the IP of the gateway's pod: %+v", ip)
	}
	rapid.Check(t, func(r *rapid.T) {
		w := newWorld(r)
		for _, make := range rapid.Permutation(w.users()).Draw(r, "creations") {
			make()
			if rapid.Bool().Draw(r, "off and on") {
				before := w.config
				w.config.Enabled = !before.Enabled
				w.step(r)
				w.config = before
			}
			for range rapid.IntRange(0, 3).Draw(r, "plans") {
				w.step(r)
			}
			if rapid.IntRange(0, 3).Draw(r, "alter") == 0 {
				w.alter(r)
			}
		}
		for range rapid.IntRange(0, 3).Draw(r, "plans") {
			w.step(r)
		}
		w.restore(first)
		w.settle(r)
		// The gateway's own address depends on when it was created, so the EIPs of the test are fixed, and hashes are equal.
		if have := w.conditions(); have != want {
			r.Fatalf("another order gives\n%s\nwant\n%s", have, want)
		}
		if have := w.ports(); have != wantRows {
			r.Fatalf("another order gives other rows:\n%s\nwant:\n%s", have, wantRows)
		}
		w.drain(r)
	})
}

// drain deletes everything in any order, and checks that nothing is left.
func (w *world) drain(r *rapid.T) {
	r.Helper()
	now := metav1.NewTime(time.Unix(2000, 0))
	deletions := []func(){
		func() { w.vpcs["test-vpc-1"].DeletionTimestamp = &now },
		func() { w.subnets["net1"].DeletionTimestamp = &now },
		func() { w.subnets["ovn-vpc-external-network"].DeletionTimestamp = &now },
		func() { w.gateways["gw1"].DeletionTimestamp = &now },
		func() { w.definitions = map[string]string{} },
		func() { w.config = objects.NATConfig{} },
		func() { delete(w.snats, "snat01") },
		func() { delete(w.snats, "snat02") },
		func() { delete(w.fips, "fip01") },
		func() { delete(w.dnats, "web") },
		func() { delete(w.pods, "vpc1-pod") },
	}
	for _, name := range []string{"eip1", "eip2", "eip3"} {
		deletions = append(deletions, func() { w.eips[name].DeletionTimestamp = &now })
	}
	for _, remove := range rapid.Permutation(deletions).Draw(r, "deletions") {
		remove()
		for range rapid.IntRange(0, 2).Draw(r, "plans") {
			w.step(r)
		}
	}
	w.settle(r)
	left := len(w.vpcs) + len(w.subnets) + len(w.gateways) + len(w.eips) + len(w.ips) + len(w.workloads) + len(w.pods) + len(w.database.Rows())
	if left != 0 {
		r.Fatalf("%d objects and rows are left: %v %v %v %v %v %v\n%s", left, w.vpcs, w.subnets, w.gateways, w.eips, w.ips, w.workloads, w.ports())
	}
}

// Objects that cannot be served report which field is wrong and what would be valid, and other objects are not affected.
func TestBadGatewayObjects(t *testing.T) {
	for name, c := range map[string]struct {
		change func(w *world)
		object func(w *world) []metav1.Condition
		want   []string
	}{
		"lanIp outside": {
			func(w *world) { w.gateways["gw1"].Spec.LanIP = "10.9.9.9" }, nil, []string{"Invalid", "spec.lanIp", "10.0.1.0/24"},
		},
		"lanIp of the router": {
			func(w *world) { w.gateways["gw1"].Spec.LanIP = "10.0.1.1" }, nil, []string{"Invalid", "spec.lanIp", "router"},
		},
		"lanIp of a pod": {
			func(w *world) { w.gateways["gw1"].Spec.LanIP = "10.0.1.77" }, nil, []string{"Conflict", "spec.lanIp", "vpc1-pod"},
		},
		"another VPC's subnet": {
			func(w *world) { w.gateways["gw1"].Spec.Vpc = "other" }, nil, []string{"Missing", "spec.vpc", `"other"`},
		},
		"no definition": {
			func(w *world) { w.definitions = nil }, nil, []string{"Missing", "NetworkAttachmentDefinition"},
		},
		"a definition of another type": {
			func(w *world) { w.definitions["ovn-vpc-external-network.kube-system"] = `{"type":"bridge"}` }, nil, []string{"Invalid", "macvlan"},
		},
		"a definition with broken JSON": {
			func(w *world) { w.definitions["ovn-vpc-external-network.kube-system"] = `{` }, nil, []string{"Invalid", "JSON"},
		},
		"gateways turned off": {
			func(w *world) { w.config.Enabled = false }, nil, []string{"Disabled", "enable-vpc-nat-gw"},
		},
		"no image": {
			func(w *world) { w.config.Image = "" }, nil, []string{"Missing", "image"},
		},
		"an EIP outside": {
			func(w *world) { w.eip("bad", 20, "192.168.7.7") },
			func(w *world) []metav1.Condition { return w.eips["bad"].Status.Conditions },
			[]string{"Invalid", "spec.v4ip", "192.168.100.0/24"},
		},
		"an EIP that is taken": {
			func(w *world) { w.eip("bad", 20, "192.168.100.230") },
			func(w *world) []metav1.Condition { return w.eips["bad"].Status.Conditions },
			[]string{"Conflict", "spec.v4ip", "eip1"},
		},
		"an EIP of no gateway": {
			func(w *world) { w.eip("bad", 20, "192.168.100.240").Spec.NatGwDp = "none" },
			func(w *world) []metav1.Condition { return w.eips["bad"].Status.Conditions },
			[]string{"Missing", "spec.natGwDp", `"none"`},
		},
		"an EIP of another external Subnet": {
			func(w *world) { w.eip("bad", 20, "").Spec.ExternalSubnet = "net1" },
			func(w *world) []metav1.Condition { return w.eips["bad"].Status.Conditions },
			[]string{"Invalid", "spec.externalSubnet", "net1"},
		},
		"a second FIP on an EIP": {
			func(w *world) { w.fip("bad", 20, "eip3", "10.0.1.9") },
			func(w *world) []metav1.Condition { return w.fips["bad"].Status.Conditions },
			[]string{"Conflict", "fip01"},
		},
		"FIP on an EIP with a port forward": {
			func(w *world) { w.fip("bad", 20, "eip1", "10.0.1.9") },
			func(w *world) []metav1.Condition { return w.fips["bad"].Status.Conditions },
			[]string{"Conflict", "web"},
		},
		"a rule of no EIP": {
			func(w *world) { w.fip("bad", 20, "none", "10.0.1.9") },
			func(w *world) []metav1.Condition { return w.fips["bad"].Status.Conditions },
			[]string{"Missing", "spec.eip", `"none"`},
		},
		"an address that is none": {
			func(w *world) { w.fip("bad", 20, "eip2", "$(reboot)") },
			func(w *world) []metav1.Condition { return w.fips["bad"].Status.Conditions },
			[]string{"Invalid", "spec.internalIp"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			users := w.users()
			for _, make := range users {
				if c.object == nil {
					make()
				}
			}
			if c.object == nil {
				if strings.Contains(name, "of a pod") { // the pod was created first
					w.gateways["gw1"].Spec.LanIP = "10.0.1.200"
					w.settle(t)
				}
				c.change(w)
			} else {
				for _, make := range users {
					make()
				}
				w.settle(t)
				c.change(w)
			}
			w.settle(t)
			of := c.object
			if of == nil {
				of = func(w *world) []metav1.Condition { return w.gateways["gw1"].Status.Conditions }
			}
			have := condition(of(w), "Ready")
			for _, words := range c.want {
				if !strings.Contains(have, words) {
					t.Errorf("condition %q, want %q in it", have, words)
				}
			}
			if c.object != nil && (!w.fips["fip01"].Status.Ready || !w.snats["snat02"].Status.Ready || !w.dnats["web"].Status.Ready) {
				t.Errorf("the others: %s", w.conditions())
			}
		})
	}
}
