package plan_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
	"weft.dev/weft/internal/ovn"
	"weft.dev/weft/internal/reconcile"
	"weft.dev/weft/internal/vpc/cluster/plan"
	"weft.dev/weft/internal/vpc/northbound"
	"weft.dev/weft/internal/vpc/objects"
)

// fataler is the common part of *testing.T and *rapid.T.
type fataler interface {
	Helper()
	Fatalf(format string, args ...any)
}

// world has an API server's objects and a northbound database, on which plans are executed.
type world struct {
	vpcs     map[string]*kubeovn.Vpc
	subnets  map[string]*kubeovn.Subnet
	gateways map[string]*kubeovn.VpcNatGateway
	ips      map[string]*kubeovn.IP
	pods     map[string]*corev1.Pod
	spaces   map[string]*corev1.Namespace
	database *ovn.Database
	engine   *ovn.Fake
	waiting  map[string]string

	eips        map[string]*kubeovn.IptablesEIP
	snats       map[string]*kubeovn.IptablesSnatRule
	fips        map[string]*kubeovn.IptablesFIPRule
	dnats       map[string]*kubeovn.IptablesDnatRule
	workloads   map[string]*appsv1.StatefulSet
	policies    map[string]*networkingv1.NetworkPolicy
	definitions map[string]string
	config      objects.NATConfig

	// replaced counts the gateways' pods.
	replaced int

	refusals

	reported  map[string]plan.Object
	defined   map[string]string
	fragments map[string]northbound.Rows
}

// refusals are the objects of plans that are not written, and the planner, which must plan them again.
type refusals struct {
	planner *plan.Planner // has seen every change of the objects
	// refuses selects the objects of a plan that the API server refuses to write; nil: none.
	refuses func(plan.Object) bool
	// postpones selects the objects of a plan whose reports are written later; nil: none.
	postpones func(plan.Object) bool
}

func newWorld(t fataler) *world {
	w := &world{
		vpcs: map[string]*kubeovn.Vpc{}, subnets: map[string]*kubeovn.Subnet{}, gateways: map[string]*kubeovn.VpcNatGateway{},
		ips: map[string]*kubeovn.IP{}, pods: map[string]*corev1.Pod{}, spaces: map[string]*corev1.Namespace{}, database: ovn.NewDatabase(),
		eips: map[string]*kubeovn.IptablesEIP{}, snats: map[string]*kubeovn.IptablesSnatRule{}, fips: map[string]*kubeovn.IptablesFIPRule{},
		dnats: map[string]*kubeovn.IptablesDnatRule{}, workloads: map[string]*appsv1.StatefulSet{}, definitions: map[string]string{},
	}
	w.policies = map[string]*networkingv1.NetworkPolicy{}
	w.planner, w.reported, w.defined, w.fragments = plan.NewPlanner(), map[string]plan.Object{}, map[string]string{}, map[string]northbound.Rows{}
	for _, name := range []string{"ns1", kubeovn.ConfigNamespace} {
		w.spaces[name] = &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	}
	w.engine = ovn.NewFake(w.database)
	if err := w.engine.Lead(context.Background(), 1); err != nil {
		t.Fatalf("%v", err)
	}
	return w
}

func values[T any](m map[string]*T) []T {
	out := make([]T, 0, len(m))
	for _, key := range slices.Sorted(maps.Keys(m)) {
		out = append(out, *m[key])
	}
	return out
}

func (w *world) objects() *plan.Objects {
	return &plan.Objects{
		Vpcs: values(w.vpcs), Subnets: values(w.subnets), Gateways: values(w.gateways), IPs: values(w.ips), Pods: values(w.pods),
		EIPs: values(w.eips), SNATs: values(w.snats), FIPs: values(w.fips), DNATs: values(w.dnats), Workloads: values(w.workloads),
		Policies: values(w.policies), Definitions: w.definitions, NAT: w.config,
		Namespaces: values(w.spaces), Now: metav1.NewTime(time.Unix(1000, 0)),
	}
}

// handOver passes to the planner what has changed since the last call.
func (w *world) handOver() {
	now := w.all()
	for key, object := range w.reported {
		if now[key] == nil {
			w.planner.Remove(object)
		}
	}
	for key, object := range now {
		if !reflect.DeepEqual(w.reported[key], object) {
			w.planner.Set(object)
		}
	}
	for name := range w.defined {
		if _, there := w.definitions[name]; !there {
			w.planner.RemoveDefinition(name)
		}
	}
	for name, config := range w.definitions {
		if before, there := w.defined[name]; !there || before != config {
			w.planner.SetDefinition(name, config)
		}
	}
	w.planner.SetNAT(w.config)
	w.reported, w.defined = now, maps.Clone(w.definitions)
}

// all returns copies of all objects, as an API server does.
func (w *world) all() map[string]plan.Object {
	now := map[string]plan.Object{}
	gather(now, w.vpcs)
	gather(now, w.subnets)
	gather(now, w.gateways)
	gather(now, w.ips)
	gather(now, w.pods)
	gather(now, w.spaces)
	gather(now, w.eips)
	gather(now, w.snats)
	gather(now, w.fips)
	gather(now, w.dnats)
	gather(now, w.workloads)
	gather(now, w.policies)
	return now
}

// gather copies the objects, as an API server does.
func gather[T any, P interface {
	*T
	plan.Object
}](into map[string]plan.Object, objects map[string]P) {
	for name, object := range objects {
		into[fmt.Sprintf("%T %s/%s", object, object.GetNamespace(), name)] = object.DeepCopyObject().(plan.Object) //nolint:forcetypeassert // a copy is of the same kind
	}
}

// plan makes a plan of the changes, which must equal the plan of everything.
func (w *world) plan(t fataler) *plan.Plan {
	t.Helper()
	w.handOver()
	have, want := w.planner.Plan(metav1.NewTime(time.Unix(1000, 0))), plan.Compile(w.objects())
	if !reflect.DeepEqual(w.reported, w.all()) { // they must not be changed, like those of a cache
		t.Fatalf("the planner changed objects that it was given")
	}
	for owner, rows := range have.Fragments {
		if w.fragments[owner] = rows; len(rows) == 0 {
			delete(w.fragments, owner)
		}
	}
	maps.DeleteFunc(want.Fragments, func(_ string, rows northbound.Rows) bool { return len(rows) == 0 })
	if !reflect.DeepEqual(w.fragments, want.Fragments) {
		t.Fatalf("rows by what changed: %v\nof everything: %v", w.fragments, want.Fragments)
	}
	parts := func(p *plan.Plan) map[string]any {
		return map[string]any{
			"Create": values(byName(p.Create)), "Delete": values(byName(p.Delete)), "Vpcs": p.Vpcs, "VpcStatus": p.VpcStatus, "Subnets": p.Subnets, "SubnetStatus": p.SubnetStatus,
			"Updates": p.Updates, "Statuses": p.Statuses, "Workloads": [][]*appsv1.StatefulSet{p.CreateWorkloads, p.UpdateWorkloads, p.DeleteWorkloads},
			"Waiting": p.Waiting, "Closed": p.Closed,
		}
	}
	whole := parts(want)
	for part, now := range parts(have) {
		if reflect.DeepEqual(now, whole[part]) {
			continue
		}
		if a, b := fmt.Sprintf("%+v", dump(now)), fmt.Sprintf("%+v", dump(whole[part])); a != b {
			t.Fatalf("%s by what changed:\n%s\nof everything:\n%s", part, a, b)
		}
	}
	return have
}

func byName[T plan.Object](list []T) map[string]*T {
	all := map[string]*T{}
	for i := range list {
		all[list[i].GetName()] = &list[i]
	}
	return all
}

// dump formats a value, so that nil and empty lists are equal.
func dump(value any) string {
	text, err := json.Marshal(value)
	if err != nil {
		return err.Error()
	}
	return strings.ReplaceAll(string(text), "null", "[]")
}

// wanted returns all rows.
func (w *world) wanted() northbound.Rows {
	all := northbound.Rows{}
	for _, rows := range w.fragments {
		maps.Copy(all, rows)
	}
	return all
}

// refuse removes from the plan the reports that are postponed, and what the API server refuses to write, and makes the planner plan it again.
func (r *refusals) refuse(p *plan.Plan) {
	if r.postpones != nil {
		p.VpcStatus, p.SubnetStatus, p.Statuses = postponed(r, p, p.VpcStatus), postponed(r, p, p.SubnetStatus), postponed(r, p, p.Statuses)
	}
	if r.refuses == nil {
		return
	}
	p.Create, p.Delete = refused(r, p.Create), refused(r, p.Delete)
	p.VpcStatus, p.SubnetStatus = refused(r, p.VpcStatus), refused(r, p.SubnetStatus)
	p.Vpcs, p.Subnets, p.Updates = held(r, p, p.Vpcs), held(r, p, p.Subnets), held(r, p, p.Updates)
	p.Statuses = refused(r, p.Statuses)
	p.CreateWorkloads, p.UpdateWorkloads = refused(r, p.CreateWorkloads), refused(r, p.UpdateWorkloads)
	p.DeleteWorkloads = refused(r, p.DeleteWorkloads)
}

func refused[T plan.Object](r *refusals, list []T) []T {
	return slices.DeleteFunc(list, func(object T) bool {
		if !r.refuses(object) {
			return false
		}
		r.planner.Retry(object)
		return true
	})
}

// held is refused for objects whose finalizers change, with what must not be written without them.
func held[T plan.Object](r *refusals, p *plan.Plan, list []T) []T {
	all := slices.Clone(list)
	left := refused(r, list)
	for _, object := range all {
		if slices.ContainsFunc(left, func(other T) bool {
			return other.GetName() == object.GetName() && reflect.TypeOf(other) == reflect.TypeOf(object)
		}) {
			continue
		}
		for _, ip := range p.Withhold(object) {
			r.planner.Retry(ip)
		}
	}
	return left
}

func postponed[T plan.Object](r *refusals, p *plan.Plan, list []T) []T {
	return slices.DeleteFunc(list, func(object T) bool {
		if !p.Reports(object) || !r.postpones(object) {
			return false
		}
		r.planner.Postpone(object)
		return true
	})
}

// step executes one plan, rows first, and reports whether it wrote anything.
func (w *world) step(t fataler) bool {
	t.Helper()
	p := w.plan(t)
	w.refuse(p)
	have, err := w.engine.Read(context.Background())
	if err != nil {
		t.Fatalf("%v", err)
	}
	change := reconcile.Diff(w.wanted(), have)
	if err := w.engine.Commit(context.Background(), change); err != nil {
		t.Fatalf("%v", err)
	}
	w.waiting = maps.Clone(p.Waiting)
	for _, ip := range p.Delete {
		delete(w.ips, objects.HolderOf(ip))
	}
	created := map[string]bool{}
	for _, ip := range p.Create {
		if w.ips[objects.HolderOf(ip)] != nil {
			t.Fatalf("IP %s is there", ip.Name)
		}
		for _, other := range w.ips {
			if other.Name == ip.Name {
				t.Fatalf("IP %s is there, and is %s's", ip.Name, objects.HolderOf(other))
			}
		}
		w.ips[objects.HolderOf(ip)] = ip
		created[ip.Spec.Subnet] = true
	}
	for _, v := range p.Vpcs {
		w.vpcs[v.Name].Finalizers = v.Finalizers
	}
	for _, s := range p.Subnets {
		w.subnets[s.Name].Finalizers = s.Finalizers
	}
	for _, v := range p.VpcStatus {
		w.vpcs[v.Name].Status = v.Status
	}
	for _, s := range p.SubnetStatus {
		w.subnets[s.Name].Status = s.Status
	}
	for name := range created {
		if s := w.subnets[name]; len(s.Finalizers) == 0 || len(w.vpcs[s.Spec.Vpc].Finalizers) == 0 {
			t.Fatalf("an address of Subnet %s is assigned, which can be deleted at any time, or its Vpc can", name)
		}
	}
	acted := w.gatewaysOf(t, p)
	maps.DeleteFunc(w.vpcs, func(_ string, v *kubeovn.Vpc) bool { return v.DeletionTimestamp != nil && len(v.Finalizers) == 0 })
	maps.DeleteFunc(w.subnets, func(_ string, s *kubeovn.Subnet) bool { return s.DeletionTimestamp != nil && len(s.Finalizers) == 0 })
	w.handOver() // a writer knows what it wrote
	return acted || !change.Empty() || len(p.Delete)+len(p.Create)+len(p.Vpcs)+len(p.Subnets)+len(p.VpcStatus)+len(p.SubnetStatus) > 0
}

// settle executes plans until one writes nothing.
func (w *world) settle(t fataler) {
	t.Helper()
	for range 20 {
		if !w.step(t) {
			w.check(t)
			return
		}
	}
	t.Fatalf("plans go on without end")
}

// check checks what must hold in every state.
func (w *world) check(t fataler) {
	t.Helper()
	taken := map[string]string{}
	using := map[string]map[string]bool{}
	use := func(subnet, address string) {
		if using[subnet] == nil {
			using[subnet] = map[string]bool{}
		}
		using[subnet][address] = true
	}
	rows := w.database.Rows()
	names := map[string]ovn.Row{}
	for key, row := range rows {
		if key.Table == ovn.SwitchPort {
			names[row.Text["name"]] = row
		}
	}
	for name, ip := range w.ips {
		at := ip.Spec.SubnetUID + " " + ip.Spec.V4IPAddress
		if other := taken[at]; other != "" {
			t.Fatalf("%s and %s have %s", name, other, at)
		}
		taken[at] = name
		use(ip.Spec.Subnet, ip.Spec.V4IPAddress)
		if row, there := names[ip.Spec.LogicalPort]; !there || row.Set["addresses"][0] != ip.Spec.MacAddress+" "+ip.Spec.V4IPAddress {
			t.Fatalf("IP %s (%s %s) has no port, or another one: %v", name, ip.Spec.MacAddress, ip.Spec.V4IPAddress, row)
		}
	}
	for _, g := range w.gateways {
		if s := w.subnets[g.Spec.Subnet]; s != nil && s.Spec.Vpc == g.Spec.Vpc && strings.HasPrefix(g.Spec.LanIP, "10.0.1.") && g.Spec.LanIP != "10.0.1.1" {
			use(g.Spec.Subnet, g.Spec.LanIP)
		}
		if g.Status.IP != "" {
			use(kubeovn.DefaultExternalSubnet, g.Status.IP)
		}
	}
	for _, e := range w.eips {
		if e.Status.IP != "" {
			use(kubeovn.DefaultExternalSubnet, e.Status.IP)
		}
	}
	for name, s := range w.subnets {
		size := int64(253)
		if name == kubeovn.DefaultExternalSubnet {
			size = 34 // .221 to .254
		}
		count := int64(len(using[name]))
		ready := meta.IsStatusConditionTrue(s.Status.Conditions, kubeovn.ConditionReady)
		if ready && (s.Status.V4UsingIPs != count || s.Status.V4UsingIPs+s.Status.V4AvailableIPs != size) {
			t.Fatalf("Subnet %s: %d in use, want %d; %d available", name, s.Status.V4UsingIPs, count, s.Status.V4AvailableIPs)
		}
	}
}

func created(name string, second int) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name), CreationTimestamp: metav1.NewTime(time.Unix(int64(second), 0))}
}

func (w *world) vpc(name string, second int, spec kubeovn.VpcSpec) {
	w.vpcs[name] = &kubeovn.Vpc{ObjectMeta: created(name, second), Spec: spec}
}

func (w *world) subnet(name string, second int, vpc, cidr string) *kubeovn.Subnet {
	s := &kubeovn.Subnet{ObjectMeta: created(name, second), Spec: kubeovn.SubnetSpec{Vpc: vpc, CIDRBlock: cidr}}
	w.subnets[name] = s
	return s
}

func (w *world) pod(name, subnet, ip string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: created(name, 50), Spec: corev1.PodSpec{NodeName: "node1"}}
	p.Namespace = "ns1"
	p.Annotations = map[string]string{kubeovn.AnnotationLogicalSwitch: subnet, kubeovn.AnnotationIPAddress: ip}
	w.pods[name] = p
	return p
}

// ports returns the rows as text, without tunnel keys, which depend on the order of events.
func (w *world) ports() string {
	var lines []string
	for key, row := range w.database.Rows() {
		delete(row.Map["options"], "requested-tnl-key")
		delete(row.Map["other_config"], "requested-tnl-key")
		lines = append(lines, key.String()+" "+row.String())
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func keys[T any](m map[string]T) []string { return slices.Sorted(maps.Keys(m)) }
