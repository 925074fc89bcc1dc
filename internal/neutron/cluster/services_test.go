package cluster

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"weft.dev/weft/internal/neutron/cloud"
)

// web is a Service of the namespace blue that requests a load balancer.
func web(change func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "blue", Name: "web", UID: "uid-web"},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80}},
		},
	}
	if change != nil {
		change(s)
	}
	return s
}

func (r *rig) services() *serviceReconciler {
	r.clock = time.Now()
	return &serviceReconciler{
		client: r.client, cloud: r.open, events: r.events, log: discard(), waits: waits{now: func() time.Time { return r.clock }},
	}
}

// inStep reconciles a Service until it is not queued again, and returns the last error.
func (r *rig) inStep(t *testing.T, services *serviceReconciler) error {
	t.Helper()
	at := request("blue")
	at.Name = "web"
	for range 1000 {
		result, err := services.Reconcile(t.Context(), at)
		if err != nil || result.RequeueAfter == 0 || result.RequeueAfter >= reread {
			return err
		}
		r.clock = r.clock.Add(result.RequeueAfter)
	}
	t.Fatal("the load balancer is never in step")
	return nil
}

// A project can rename a Service's load balancer. It stays in use, and is deleted with the Service.
func TestRenamedLoadBalancer(t *testing.T) {
	r := newRig(t, append(blue(), web(nil))...)
	r.addBlue()
	services := r.services()
	if err := r.inStep(t, services); err != nil {
		t.Fatal(err)
	}
	r.cloud.set("loadbalancers", r.cloud.all("loadbalancers")[0]["id"].(string), "name", "mine") //nolint:forcetypeassert // it is
	if err := r.inStep(t, services); err != nil {
		t.Fatal(err)
	}
	if all := r.cloud.all("loadbalancers"); len(all) != 1 {
		t.Errorf("after it was renamed: %v", all)
	}
	r.remove(t, web(nil))
	if err := r.inStep(t, services); err != nil {
		t.Fatal(err)
	}
	r.left(t, "loadbalancers", "floatingips")
}

// Another project's load balancer with the same name does not prevent a Service's own load balancer, nor its deletion, and stays.
func TestLoadBalancersOfOneName(t *testing.T) {
	for _, first := range []bool{true, false} {
		r := newRig(t, append(blue(), web(nil))...)
		r.addBlue()
		add := func() string {
			return r.cloud.add("loadbalancers", object{"name": "stackube_blue_web", "project_id": "another", "description": "mine"})
		}
		var foreign string
		if first {
			foreign = add()
		}
		services, at := r.services(), request("blue")
		at.Name = "web"
		for range 2 {
			if err := r.inStep(t, services); err != nil {
				t.Fatalf("another's is there first: %v: %v", first, err)
			}
			if foreign == "" {
				foreign = add()
			}
		}
		if all := r.cloud.all("loadbalancers"); len(all) != 2 {
			t.Errorf("load balancers: %v", all)
		}
		if all := r.cloud.all("floatingips"); len(all) != 1 {
			t.Errorf("floating IPs: %v", all)
		}
		s := &corev1.Service{}
		if err := r.client.Get(t.Context(), at.NamespacedName, s); err != nil || len(s.Status.LoadBalancer.Ingress) != 1 {
			t.Errorf("the Service has %v: %v", s.Status.LoadBalancer, err)
		}
		if err := r.client.Delete(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		if err := r.inStep(t, services); err != nil {
			t.Fatalf("deletion: %v", err)
		}
		if err := r.client.Get(t.Context(), at.NamespacedName, s); client.IgnoreNotFound(err) != nil || err == nil && controllerutil.ContainsFinalizer(s, Finalizer) {
			t.Errorf("the Service is kept: %v", s.Finalizers)
		}
		if all := r.cloud.all("loadbalancers"); len(all) != 1 || all[0]["id"] != foreign {
			t.Errorf("load balancers that are left: %v", all)
		}
		if all := r.cloud.all("floatingips"); len(all) != 0 {
			t.Errorf("floating IPs that are left: %v", all)
		}
	}
}

// A Service that names an address gets it only if its project has it and it is free; nothing is created then. Without a name Neutron
// chooses.
func TestFloatingAddressesOfServices(t *testing.T) {
	const named = "192.0.2.7"
	for name, c := range map[string]struct {
		held object
		want string
	}{
		"none has it":       {nil, ""},
		"another's":         {object{"project_id": "another"}, ""},
		"the project's":     {object{"project_id": "admin"}, named},
		"in use":            {object{"project_id": "admin", "port_id": "vm"}, ""},
		"of another's port": {object{"project_id": "another", "port_id": "vm"}, ""},
	} {
		r := newRig(t, append(blue(), web(func(s *corev1.Service) { s.Spec.LoadBalancerIP = named }))...)
		r.addBlue()
		if c.held != nil {
			c.held["floating_ip_address"], c.held["floating_network_id"] = named, externalNetwork
			r.cloud.add("floatingips", c.held)
		}
		at := request("blue")
		at.Name = "web"
		err := r.inStep(t, r.services())
		s := &corev1.Service{}
		if err := r.client.Get(t.Context(), at.NamespacedName, s); err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, in := range s.Status.LoadBalancer.Ingress {
			got = in.IP
		}
		said := r.said()
		if got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%s: the Service has %q, want %q: %v", name, got, c.want, err)
		}
		if got == "" && c.held["project_id"] != "admin" && !strings.Contains(said, "openstack floating ip create --project admin --floating-ip-address 192.0.2.7 outside") {
			t.Errorf("%s: no event has the command: %s", name, said)
		}
		if all := r.cloud.all("floatingips"); c.held == nil && len(all) > 0 || len(all) > 1 {
			t.Errorf("%s: floating IPs have been made: %v", name, all)
		}
	}
	r := newRig(t, append(blue(), web(nil))...)
	r.addBlue()
	if err := r.inStep(t, r.services()); err != nil || len(r.cloud.all("floatingips")) != 1 {
		t.Errorf("without a name: %v: %v", r.cloud.all("floatingips"), err)
	}
}

// octaviaChanges returns the requests that change something in Octavia.
func (f *fakeOpenStack) octaviaChanges() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(f.changes), func(c string) bool { return strings.Contains(c, "floatingips") })
}

// balanced returns each listener of the load balancers in Octavia with its number of members.
func (f *fakeOpenStack) balanced() map[string]int {
	all := map[string]int{}
	for _, l := range f.all("listeners") {
		pool, _ := l["default_pool_id"].(string)
		all[fmt.Sprint(l["protocol"], l["protocol_port"])] = len(f.all("pools/" + pool + "/members"))
	}
	return all
}

// However long Octavia takes for a change, a reconciliation requests at most one and waits for none. If the Service changes meanwhile, the
// result is the load balancer of its last state.
func TestReconciliationsOfServicesAreShort(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		slice := &discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: "blue", Name: "web-1", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
			AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(8080))}},
			Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.244.0.5"}}, {Addresses: []string{"10.244.0.6"}}},
		}
		r := newRig(t, append(blue(), web(nil), slice)...)
		r.addBlue()
		r.cloud.pending = rapid.IntRange(0, 2).Draw(rt, "reads until a change is made")
		services, at := r.services(), request("blue")
		at.Name = "web"
		r.cloud.monitors = rapid.Bool().Draw(rt, "monitors")
		r.open.held.Store(r.cloud.session(t))
		s := &corev1.Service{}
		ports := map[int32]bool{80: true}
		for round := range rapid.IntRange(1, 3).Draw(rt, "rounds") {
			if round > 0 {
				if err := r.client.Get(t.Context(), at.NamespacedName, s); err != nil {
					rt.Fatal(err)
				}
				s.Spec.Ports = nil
				ports = map[int32]bool{}
				for _, p := range rapid.SliceOfNDistinct(rapid.Int32Range(80, 84), 1, 4, rapid.ID[int32]).Draw(rt, "ports") {
					ports[p] = true
					s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: "http", Port: p})
				}
				if err := r.client.Update(t.Context(), s); err != nil {
					rt.Fatal(err)
				}
			}
			for range rapid.IntRange(0, 8).Draw(rt, "reconciliations") {
				before := len(r.cloud.octaviaChanges())
				result, err := services.Reconcile(t.Context(), at)
				if err != nil || result.RequeueAfter == 0 {
					rt.Fatalf("%v: %v", result, err)
				}
				if made := r.cloud.octaviaChanges()[before:]; len(made) > 1 {
					rt.Fatalf("one reconciliation asked for %v", made)
				}
			}
		}
		if err := r.inStep(t, services); err != nil {
			rt.Fatal(err)
		}
		held := r.cloud.balanced()
		for p := range ports {
			if held[fmt.Sprint("TCP", p)] != len(slice.Endpoints) {
				rt.Errorf("port %d is not balanced over the endpoints: members of listeners %v", p, held)
			}
		}
		if len(held) != len(ports) || len(r.cloud.all("loadbalancers")) != 1 || len(r.cloud.all("pools")) != len(ports) {
			rt.Errorf("Octavia has listeners %v, pools %v, want ports %v", held, r.cloud.all("pools"), ports)
		}
		before := len(r.cloud.octaviaChanges())
		if err := r.inStep(t, services); err != nil || len(r.cloud.octaviaChanges()) > before {
			rt.Errorf("what was in step was changed: %v: %v", r.cloud.octaviaChanges()[before:], err)
		}
	})
}

// A load balancer that stays PENDING is polled less and less often, is reported after minutes, and is not changed meanwhile.
func TestPendingLoadBalancers(t *testing.T) {
	r := newRig(t, append(blue(), web(nil))...)
	r.addBlue()
	r.cloud.pending = 1 << 20
	services, at := r.services(), request("blue")
	at.Name = "web"
	now := time.Now()
	services.waits.now = func() time.Time { return now }
	looks := 0
	for begin := now; now.Sub(begin) < pendingLimit; looks++ {
		result, err := services.Reconcile(t.Context(), at)
		if err != nil || result.RequeueAfter < shortWait || result.RequeueAfter > longWait {
			t.Fatalf("after %s: %v: %v", now.Sub(begin), result, err)
		}
		now = now.Add(result.RequeueAfter)
	}
	if said := r.said(); looks > 60 || said != "" {
		t.Errorf("%d looks within %s, events %q", looks, pendingLimit, said)
	}
	if _, err := services.Reconcile(t.Context(), at); err != nil {
		t.Fatal(err)
	}
	if said := r.said(); !strings.Contains(said, "openstack loadbalancer show stackube_blue_web") {
		t.Errorf("events after %s: %q", pendingLimit, said)
	}
	if made := r.cloud.octaviaChanges(); len(made) != 1 {
		t.Errorf("Octavia was asked for %v", made)
	}
	s := &corev1.Service{}
	if err := r.client.Get(t.Context(), at.NamespacedName, s); err != nil {
		t.Fatal(err)
	}
	if err := r.client.Delete(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	result, err := services.Reconcile(t.Context(), at)
	if err != nil || result.RequeueAfter == 0 {
		t.Errorf("deletion: %v: %v", result, err)
	}
}

// A deleted Service that has an address keeps its finalizer while the catalogue has no Octavia. An attempt authenticates again once the
// catalogue is a minute old, so that its load balancer is deleted once Octavia is back.
func TestCatalogueLosesOctavia(t *testing.T) {
	r := newRig(t, append(blue(), web(nil))...)
	r.addBlue()
	services := r.services()
	if err := r.inStep(t, services); err != nil {
		t.Fatal(err)
	}
	at := request("blue")
	at.Name = "web"
	s := &corev1.Service{}
	if err := r.client.Get(t.Context(), at.NamespacedName, s); err != nil {
		t.Fatal(err)
	}
	if err := r.client.Delete(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	r.cloud.withoutOctavia = true
	for _, age := range []time.Duration{0, catalogueTime} {
		used := r.cloud.session(t)
		used.opened = time.Now().Add(-age)
		r.open.held.Store(used)
		if _, err := services.Reconcile(t.Context(), at); !errors.Is(err, cloud.ErrNoOctavia) {
			t.Errorf("deletion without Octavia: %v", err)
		}
		if kept := r.open.held.Load() != nil; kept != (age < catalogueTime) {
			t.Errorf("a session of age %s without Octavia is used again: %v", age, kept)
		}
	}
	if err := r.client.Get(t.Context(), at.NamespacedName, s); err != nil || len(s.Finalizers) == 0 {
		t.Errorf("the Service has finalizers %v: %v", s.Finalizers, err)
	}
	r.cloud.withoutOctavia = false
	r.open.held.Store(r.cloud.session(t))
	if err := r.inStep(t, services); err != nil {
		t.Fatal(err)
	}
	if left := r.cloud.all("loadbalancers"); len(left) != 0 {
		t.Errorf("load balancers are left: %v", left)
	}
}

// A load balancer that Octavia failed to create is created again; one that has served stays, because its address would change.
func TestFailedLoadBalancers(t *testing.T) {
	for _, served := range []bool{false, true} {
		r := newRig(t, append(blue(), web(nil))...)
		r.addBlue()
		services := r.services()
		if served {
			if err := r.inStep(t, services); err != nil {
				t.Fatal(err)
			}
			r.cloud.mu.Lock()
			r.cloud.held["loadbalancers"][0]["provisioning_status"] = "ERROR"
			r.cloud.mu.Unlock()
		} else {
			r.cloud.add("loadbalancers", object{
				"name": "stackube_blue_web", "project_id": "admin", "description": "weft weft service/uid-web", "provisioning_status": "ERROR",
			})
		}
		before := r.cloud.all("loadbalancers")[0]["id"]
		for range 2 {
			if err := r.inStep(t, services); err != nil && !errors.Is(err, cloud.ErrBalancer) {
				t.Fatal(err)
			}
		}
		all := r.cloud.all("loadbalancers")
		if len(all) != 1 || (all[0]["id"] == before) != served {
			t.Errorf("it has served: %v: load balancer %v was followed by %v", served, before, all)
		}
		if said := r.said(); !strings.Contains(said, "ERROR") {
			t.Errorf("events: %s", said)
		}
	}
}

// A load balancer that Octavia always fails to create is created less and less often, also while its endpoints change, and at once when the
// Service changes. Once Octavia succeeds, the Service is served.
func TestLoadBalancersThatAlwaysFail(t *testing.T) {
	r := newRig(t, append(blue(), web(nil))...)
	r.addBlue()
	services, at := r.services(), request("blue")
	at.Name = "web"
	r.cloud.failing = true
	created := func() (count int) {
		for _, c := range r.cloud.octaviaChanges() {
			if c == "POST loadbalancers" {
				count++
			}
		}
		return count
	}
	begin := r.clock
	for event := begin; r.clock.Sub(begin) < time.Hour; {
		result, err := services.Reconcile(t.Context(), at)
		if err != nil || result.RequeueAfter <= 0 {
			t.Fatalf("%v: %v", result, err)
		}
		if !event.After(r.clock) {
			event = r.clock.Add(10 * time.Second) // an endpoint changes
		}
		r.clock = r.clock.Add(min(result.RequeueAfter, event.Sub(r.clock)))
	}
	const most = 24 // 8 until the interval is 5 minutes, then 12 in an hour
	if count := created(); count < 4 || count > most {
		t.Errorf("created %d times within an hour, want at most %d", count, most)
	}
	if said := r.said(); !strings.Contains(said, "ERROR in Octavia; it is created again in 5m0s") {
		t.Errorf("events: %s", said)
	}

	s := &corev1.Service{}
	if err := r.client.Get(t.Context(), at.NamespacedName, s); err != nil {
		t.Fatal(err)
	}
	s.Spec.Ports[0].Port = 81
	if err := r.client.Update(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	before := created()
	for range 2 { // the last one may still have to be seen as failed
		if _, err := services.Reconcile(t.Context(), at); err != nil {
			t.Fatal(err)
		}
	}
	if created() == before {
		t.Error("a changed Service waits")
	}
	r.cloud.mu.Lock()
	r.cloud.failing = false
	r.cloud.mu.Unlock()
	if err := r.inStep(t, services); err != nil {
		t.Fatal(err)
	}
	if err := r.client.Get(t.Context(), at.NamespacedName, s); err != nil || len(s.Status.LoadBalancer.Ingress) != 1 {
		t.Errorf("the Service has %v: %v", s.Status.LoadBalancer, err)
	}
	if len(services.waits.all) > 0 {
		t.Errorf("waits: %v", services.waits.all)
	}
}

// A long absence of OpenStack is not reported as a long change of a load balancer.
func TestPendingAfterAnAbsence(t *testing.T) {
	r := newRig(t, append(blue(), web(nil))...)
	r.addBlue()
	r.cloud.pending = 4
	services, at := r.services(), request("blue")
	at.Name = "web"
	if _, err := services.Reconcile(t.Context(), at); err != nil {
		t.Fatal(err)
	}
	r.cloud.absent(true)
	if _, err := services.Reconcile(t.Context(), at); err == nil {
		t.Fatal("no error of an OpenStack that is away")
	}
	r.said()
	r.cloud.absent(false)
	r.clock = r.clock.Add(time.Hour)
	if err := r.inStep(t, services); err != nil {
		t.Fatal(err)
	}
	if said := r.said(); strings.Contains(said, "under way for more than") {
		t.Errorf("events: %s", said)
	}
}

func TestServicesOfManyPorts(t *testing.T) {
	r := newRig(t, append(blue(), web(func(s *corev1.Service) {
		s.Spec.Ports = nil
		for i := range int32(65) {
			s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: fmt.Sprintf("p%d", i), Port: 1000 + i})
		}
	}))...)
	r.addBlue()
	if err := r.inStep(t, r.services()); err != nil {
		t.Errorf("it is tried again: %v", err)
	}
	if said := r.said(); !strings.Contains(said, "spec.ports: 65 given, at most 64 are served") {
		t.Errorf("events: %s", said)
	}
	if made := r.cloud.octaviaChanges(); len(made) > 0 {
		t.Errorf("Octavia was asked for %v", made)
	}
}

// Once a provider is known, a load balancer is created in one request, with the same parts as one that is created step by step, and with
// the method that the provider has.
func TestLoadBalancersInOneRequest(t *testing.T) {
	parts := func(r *rig) string {
		var all []string
		for _, collection := range []string{"listeners", "pools"} {
			for _, o := range r.cloud.all(collection) {
				all = append(all, fmt.Sprint(collection, o["name"], o["protocol"], o["protocol_port"], o["lb_algorithm"]))
				if collection == "pools" {
					for _, m := range r.cloud.all(fmt.Sprintf("pools/%s/members", o["id"])) {
						all = append(all, fmt.Sprint(m["address"], m["protocol_port"], m["subnet_id"]))
					}
				}
			}
		}
		return strings.Join(all, "\n")
	}
	service := web(func(s *corev1.Service) {
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: "more", Protocol: corev1.ProtocolTCP, Port: 81})
	})
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "blue", Name: "web", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(8080))}, {Name: new("more"), Port: new(int32(8081))}},
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"10.244.0.7", "10.244.0.8"}}},
	}
	r := newRig(t, append(blue(), service, slice)...)
	r.cloud.provider = "ovn"
	r.addBlue()
	services := r.services()
	if err := r.inStep(t, services); err != nil {
		t.Fatal(err)
	}
	want := parts(r)
	if !strings.Contains(want, "10.244.0.8") || !strings.Contains(want, "SOURCE_IP_PORT") {
		t.Fatalf("the first load balancer has\n%s", want)
	}
	for _, collection := range []string{"loadbalancers", "listeners", "pools", "floatingips"} {
		r.cloud.clear(collection)
	}
	before := len(r.cloud.changes)
	if err := r.inStep(t, services); err != nil {
		t.Fatal(err)
	}
	if got := r.cloud.changes[before:]; !slices.Equal(got, []string{"POST loadbalancers", "POST floatingips"}) {
		t.Errorf("requests for the second load balancer: %v", got)
	}
	if got := parts(r); got != want {
		t.Errorf("the second load balancer has\n%s\nwant\n%s", got, want)
	}
}
