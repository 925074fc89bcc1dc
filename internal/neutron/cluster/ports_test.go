package cluster

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	stackubev1 "weft.dev/weft/api/stackube/v1"
	weftv1 "weft.dev/weft/api/weft/v1"
	"weft.dev/weft/internal/neutron/ahead"
	"weft.dev/weft/internal/neutron/cluster/pace"
	"weft.dev/weft/internal/neutron/cluster/view"
)

// rig has the controller's reconcilers with an API server and an OpenStack, both in memory.
type rig struct {
	cloud  *fakeOpenStack
	client client.WithWatch
	open   *connection
	events *events.FakeRecorder
	clock  time.Time // of services
}

func newRig(t *testing.T, there ...client.Object) *rig {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, weftv1.AddToScheme, stackubev1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	r := &rig{
		cloud: &fakeOpenStack{}, open: &connection{}, events: events.NewFakeRecorder(100),
		client: fake.NewClientBuilder().WithScheme(scheme).WithObjects(there...).
			WithStatusSubresource(&stackubev1.Network{}, &stackubev1.Tenant{}, &corev1.Service{}, &weftv1.NeutronPort{}).Build(),
	}
	r.open.held.Store(r.cloud.session(t))
	return r
}

// said returns the events since the last call.
func (r *rig) said() string {
	var all []string
	for {
		select {
		case e := <-r.events.Events:
			all = append(all, e)
		default:
			return strings.Join(all, "\n")
		}
	}
}

func (r *rig) ports(now func() time.Time) *portReconciler {
	return &portReconciler{
		client: r.client, live: r.client, cloud: r.open, events: r.events, log: discard(), now: now,
		reserved: &reservedReader{cached: r.client, live: r.client, allowed: Options{}.withDefaults().Ranges},
		known:    map[types.NamespacedName]*known{}, claimed: map[types.NamespacedName]map[view.NodeAddress]bool{},
	}
}

// rounds returns a reconciler of ports with a clock of its own. step advances the clock, and then reconciles a Network, which must succeed.
func (r *rig) rounds(t *testing.T, network string) (ports *portReconciler, step func(after time.Duration)) {
	now := time.Now()
	ports = r.ports(func() time.Time { return now })
	return ports, func(after time.Duration) {
		t.Helper()
		now = now.Add(after)
		if _, err := ports.Reconcile(t.Context(), request(network)); err != nil {
			t.Fatal(err)
		}
	}
}

// blue is a Network that is network "net" in OpenStack, of the project "admin".
func blue() []client.Object {
	key := metav1.ObjectMeta{Namespace: "blue", Name: "blue", UID: "uid-blue"}
	return []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "blue"}},
		&stackubev1.Network{ObjectMeta: key, Spec: stackubev1.NetworkSpec{CIDR: "10.244.0.0/16"}, Status: stackubev1.NetworkStatus{
			State: stackubev1.StateActive, NetworkID: "net",
		}},
	}
}

// node is a node whose name in Neutron is host-NAME, and that routes the ranges.
func node(name string, ranges ...string) []client.Object {
	return []client.Object{
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}},
		&weftv1.NodeNetwork{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: weftv1.NodeNetworkStatus{Networks: []weftv1.NodeNetworkSection{
			{Name: weftv1.NetworkNeutron, Neutron: &weftv1.NeutronNode{Hostname: "host-" + name, Ranges: ranges}},
		}}},
	}
}

func (r *rig) addBlue() {
	r.cloud.add("networks", object{"id": "net", "name": "kube-blue-blue", "project_id": "admin", "description": "weft weft network/uid-blue"})
	r.cloud.add("subnets", object{
		"id": "subnet", "name": "kube-blue-blue-subnet", "network_id": "net", "project_id": "admin", "ip_version": 4, "cidr": "10.244.0.0/16",
		"allocation_pools": []object{{"start": "10.244.0.2", "end": "10.244.0.200"}},
	})
}

// weftsPort is a port as the controller creates it for node n1.
func weftsPort(id, address, mac string) object {
	return object{
		"id": id, "network_id": "net", "project_id": "admin", "description": "weft weft port/uid-blue/n1", "device_owner": "compute:host-n1",
		"binding:host_id": "host-n1", "mac_address": mac, "status": "ACTIVE",
		"fixed_ips": []object{{"subnet_id": "subnet", "ip_address": address}},
	}
}

// A mark is no proof: a port's owner writes its description. A port that differs in anything from what the controller creates is neither
// given to a pod nor deleted, is reported once, and does not replace another port.
func TestForgedPorts(t *testing.T) {
	r := newRig(t, slices.Concat(blue(), node("n1"), []client.Object{
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "blue", Name: "web", UID: "pod"}, Spec: corev1.PodSpec{NodeName: "n1"}},
	})...)
	r.addBlue()
	r.cloud.add("subnets", object{
		"id": "evil", "name": "evil", "network_id": "net", "project_id": "admin", "ip_version": 4, "cidr": "192.168.1.0/24",
		"allocation_pools": []object{{"start": "192.168.1.2", "end": "192.168.1.200"}},
	})
	r.cloud.add("ports", weftsPort("fits", "10.244.0.5", "0a:58:0a:f4:00:05"))
	forged := map[string]func(object){
		"forged-project":   func(o object) { o["project_id"] = "another" },
		"forged-host":      func(o object) { o["binding:host_id"] = "" },
		"forged-elsewhere": func(o object) { o["binding:host_id"] = "host-n2" },
		"forged-owner":     func(o object) { o["device_owner"] = "network:dhcp" },
		"forged-mac":       func(o object) { o["mac_address"] = "fa:16:3e:00:00:01" },
		"forged-two": func(o object) {
			o["fixed_ips"] = append(o["fixed_ips"].([]object), object{"subnet_id": "evil", "ip_address": "192.168.1.53"}) //nolint:forcetypeassert // it is
		},
	}
	for id, forge := range forged {
		o := weftsPort(id, "10.244.0.6", "0a:58:0a:f4:00:06")
		forge(o)
		r.cloud.add("ports", o)
	}
	// These are as the controller creates them, except for an address that no pod may have: they are deleted.
	useless := map[string]object{
		"evil-subnet": weftsPort("evil-subnet", "192.168.1.53", "0a:58:c0:a8:01:35"),
		"public":      weftsPort("public", "192.0.2.53", "0a:58:c0:00:02:35"),
		"host-side":   weftsPort("host-side", "169.254.0.3", "0a:58:a9:fe:00:03"),
	}
	useless["evil-subnet"]["fixed_ips"] = []object{{"subnet_id": "evil", "ip_address": "192.168.1.53"}}
	for _, o := range useless {
		r.cloud.add("ports", o)
	}
	ports := r.ports(time.Now)
	for range 3 {
		if _, err := ports.Reconcile(t.Context(), request("blue")); err != nil {
			t.Logf("reconcile: %v", err)
		}
	}
	var list weftv1.NeutronPortList
	if err := r.client.List(t.Context(), &list); err != nil {
		t.Fatal(err)
	}
	adopted := map[string]bool{}
	for i := range list.Items {
		p := &list.Items[i]
		adopted[p.Name] = true
		address := netip.MustParsePrefix(p.Spec.Addresses[0].Address)
		if forged[p.Name] != nil || useless[p.Name] != nil || !netip.MustParsePrefix("10.244.0.0/16").Contains(address.Addr()) {
			t.Errorf("NeutronPort %s with %v", p.Name, p.Spec.Addresses)
		}
	}
	if !adopted["fits"] {
		t.Error("the controller's own port has no NeutronPort")
	}
	if len(adopted) < 2 {
		t.Errorf("%d ports for a pod that waits: forged ones count", len(adopted))
	}
	for id := range forged {
		if r.cloud.one("ports", id) == nil {
			t.Errorf("port %s has been deleted", id)
		}
	}
	for id := range useless {
		if r.cloud.one("ports", id) != nil {
			t.Errorf("port %s is kept", id)
		}
	}
	if said := r.said(); strings.Count(said, "ForeignPort") != 1 {
		t.Errorf("events: %s", said)
	}
}

// A port that does not become ACTIVE for minutes is replaced, and deleted once its replacement is ACTIVE.
func TestPortsThatDoNotBecomeActive(t *testing.T) {
	r := newRig(t, slices.Concat(blue(), node("n1"), []client.Object{
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "blue", Name: "web", UID: "pod"}, Spec: corev1.PodSpec{NodeName: "n1"}},
	})...)
	r.addBlue()
	_, reconcile := r.rounds(t, "blue")
	var list weftv1.NeutronPortList
	// step reconciles after a time, and plugs the ports; those that are not dead become ACTIVE.
	step := func(after time.Duration, dead map[string]bool) {
		t.Helper()
		reconcile(after)
		if err := r.client.List(t.Context(), &list); err != nil {
			t.Fatal(err)
		}
		for i := range list.Items {
			p := &list.Items[i]
			p.Status.Plugged = p.DeletionTimestamp.IsZero()
			if err := r.client.Status().Update(t.Context(), p); err != nil {
				t.Fatal(err)
			}
			if !dead[p.Name] {
				r.cloud.set("ports", p.Name, "status", "ACTIVE")
			}
		}
	}
	step(0, nil)
	if len(list.Items) != 1 {
		t.Fatalf("%d ports for a pod that waits, want 1", len(list.Items))
	}
	for range 2 {
		step(latest, nil)
	}
	first := len(list.Items)
	if want := 1 + ahead.LeastSpare; first != want {
		t.Fatalf("%d ports once the pod's port is ACTIVE, want %d", first, want)
	}
	dead := map[string]bool{list.Items[0].Name: true, list.Items[1].Name: true}
	for id := range dead {
		r.cloud.set("ports", id, "status", "DOWN")
	}
	for range 3 {
		step(latest, dead)
	}
	if len(list.Items) != first || r.said() != "" {
		t.Errorf("%d ports before %s, want %d", len(list.Items), pace.StuckAfter, first)
	}
	for range 4 { // the last of the others became ACTIVE after the dead ones were DOWN
		step(latest, dead)
	}
	if said := r.said(); !strings.Contains(said, "has not become ACTIVE for 2m0s") {
		t.Errorf("events: %s", said)
	}
	for range 6 {
		step(latest, dead)
	}
	live := 0
	for i := range list.Items {
		switch p := &list.Items[i]; {
		case dead[p.Name] && p.DeletionTimestamp.IsZero():
			t.Errorf("port %s is kept", p.Name)
		case !dead[p.Name] && p.Spec.Active:
			live++
		}
	}
	if live != first {
		t.Errorf("%d ports are ACTIVE, want %d", live, first)
	}
	for id := range dead {
		if r.cloud.one("ports", id) != nil {
			t.Errorf("port %s is kept in OpenStack", id)
		}
	}
}

// agent writes the status of a NeutronPort as its node's agent does, unless change is nil, and returns the NeutronPort.
func (r *rig) agent(t *testing.T, name string, change func(*weftv1.NeutronPortStatus)) *weftv1.NeutronPort {
	t.Helper()
	p := &weftv1.NeutronPort{}
	if err := r.client.Get(t.Context(), client.ObjectKey{Name: name}, p); err != nil {
		t.Fatal(err)
	}
	if change == nil {
		return p
	}
	change(&p.Status)
	if err := r.client.Status().Update(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	return p
}

// behind is a client whose lists of NeutronPorts are as before a change: like a cache that has not got it yet.
func (r *rig) behind(change func()) client.Client {
	return interceptor.NewClient(r.client, interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			err := c.List(ctx, list, opts...)
			if _, is := list.(*weftv1.NeutronPortList); is {
				change()
			}
			return err
		},
	})
}

// A node's agent writes a port's status at any time. That the port is ACTIVE is written nevertheless. A port that a pod may have got meanwhile
// is not deleted, and OpenStack is not read again for that.
func TestStatusWrittenAtTheSameTime(t *testing.T) {
	r := newRig(t, slices.Concat(blue(), node("n1"), pods("n1", 1))...)
	r.addBlue()
	r.cloud.add("ports", weftsPort("port", "10.244.0.5", "0a:58:0a:f4:00:05"))
	r.cloud.set("ports", "port", "status", "DOWN")
	ports, step := r.rounds(t, "blue")
	step(latest)
	r.agent(t, "port", func(s *weftv1.NeutronPortStatus) { s.Plugged = true })
	r.cloud.set("ports", "port", "status", "ACTIVE")
	step(latest)
	ports.client = r.behind(func() {
		r.agent(t, "port", func(s *weftv1.NeutronPortStatus) {
			s.Pod = &weftv1.NeutronPortPod{Namespace: "blue", Name: "n1-0", UID: "n1-0"}
		})
	})
	step(latest)
	p := r.agent(t, "port", nil)
	if !p.Spec.Active || !p.Status.Plugged || p.Status.Pod == nil {
		t.Fatalf("active %t, plugged %t, pod %v", p.Spec.Active, p.Status.Plugged, p.Status.Pod)
	}
	// The pod waits, or has the port: it does not need another one.
	if count := len(r.cloud.all("ports")); count != 1+ahead.LeastSpare {
		t.Errorf("%d ports, want that of the pod and %d spare ones", count, ahead.LeastSpare)
	}
	r.agent(t, "port", func(s *weftv1.NeutronPortStatus) { s.Pod = nil })

	var log bytes.Buffer
	ports.log = slog.New(slog.NewTextHandler(&log, nil))
	read := ports.known[request("blue").NamespacedName].at
	r.cloud.set("ports", "port", "mac_address", "0a:58:0a:f4:00:06")
	ports.client = r.behind(func() {
		r.agent(t, "port", func(s *weftv1.NeutronPortStatus) {
			s.Pod = &weftv1.NeutronPortPod{Namespace: "blue", Name: "n1-0", UID: "n1-0"}
		})
	})
	ports.known[request("blue").NamespacedName].at = ports.now().Add(-reread) // to see the change
	step(latest)
	p = r.agent(t, "port", nil)
	if at := ports.known[request("blue").NamespacedName].at; p.DeletionTimestamp != nil || !at.After(read) || log.Len() > 0 {
		t.Errorf("deleted %v; OpenStack read at %s, before at %s; log: %s", p.DeletionTimestamp, at, read, &log)
	}
}

// pods are pods of a node that wait for ports.
func pods(node string, count int) []client.Object {
	var all []client.Object
	for i := range count {
		name := fmt.Sprintf("%s-%d", node, i)
		all = append(all, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "blue", Name: name, UID: types.UID(name)}, Spec: corev1.PodSpec{NodeName: node}})
	}
	return all
}

// byNode returns the NeutronPorts by node, and reports addresses that two of them have.
func (r *rig) byNode(t *testing.T) map[string][]weftv1.NeutronPort {
	t.Helper()
	var list weftv1.NeutronPortList
	if err := r.client.List(t.Context(), &list); err != nil {
		t.Fatal(err)
	}
	all, addresses := map[string][]weftv1.NeutronPort{}, map[string]bool{}
	for _, p := range list.Items {
		if address := p.Spec.Addresses[0].Address; addresses[address] {
			t.Errorf("two ports have %s", address)
		} else {
			addresses[address] = true
		}
		all[p.Spec.Node] = append(all[p.Spec.Node], p)
	}
	return all
}

// Ports for many pods of two nodes are created by requests at the same time. A node that OpenStack refuses does not affect the other one's.
func TestBurst(t *testing.T) {
	r := newRig(t, slices.Concat(blue(), node("n1"), node("n2"), pods("n1", 20), pods("n2", 37))...)
	r.addBlue()
	ports := r.ports(time.Now)
	r.cloud.refuse("host-n1")
	if _, err := ports.Reconcile(t.Context(), request("blue")); err == nil {
		t.Error("no error about the node that is refused")
	}
	if all := r.byNode(t); len(all["n1"]) != 0 || len(all["n2"]) != 37 {
		t.Errorf("%d ports of the node that is refused, %d of the other one", len(all["n1"]), len(all["n2"]))
	}
	r.cloud.refuse("")
	for range 2 {
		if _, err := ports.Reconcile(t.Context(), request("blue")); err != nil {
			t.Fatal(err)
		}
		if all := r.byNode(t); len(all["n1"]) != 20 || len(all["n2"]) != 37 || len(r.cloud.all("ports")) != 57 {
			t.Errorf("%d and %d ports, %d in OpenStack", len(all["n1"]), len(all["n2"]), len(r.cloud.all("ports")))
		}
	}
}

// Where 5 ports for later pods of each node would take more than an eighth of the addresses, there are 2.
func TestSparePortsOfSmallRange(t *testing.T) {
	for last, want := range map[string]int{"10.244.0.81": 1 + ahead.LeastSpare, "10.244.0.80": 3} { // from 10.244.0.2: 80 addresses, and 79
		r := newRig(t, slices.Concat(tenant("red", "n1", 1), node("n1"), node("n2"))...)
		r.addNetwork("red", last)
		other := pods("n2", 1)[0]
		other.SetNamespace("red")
		if err := r.client.Create(t.Context(), other); err != nil {
			t.Fatal(err)
		}
		_, step := r.rounds(t, "red")
		step(latest)
		for node, all := range r.byNode(t) {
			all[0].Status.Plugged = true
			pod := node + "-0"
			if node == "n1" {
				pod = "red-0"
			}
			all[0].Status.Pod = &weftv1.NeutronPortPod{Namespace: "red", Name: pod, UID: pod}
			if err := r.client.Status().Update(t.Context(), &all[0]); err != nil {
				t.Fatal(err)
			}
			r.cloud.set("ports", all[0].Name, "status", "ACTIVE")
		}
		step(latest)
		step(latest)
		if all := r.count(t, "red"); all["n1"] != want || all["n2"] != want {
			t.Errorf("pools until %s: ports of nodes %v, want %d of each", last, all, want)
		}
	}
}

// The spare ports of one node are created after the ports for which another node's pods wait.
func TestSparePortsAreLast(t *testing.T) {
	r := newRig(t, slices.Concat(blue(), node("n1"), node("n2"), pods("n1", 1))...)
	r.addBlue()
	_, step := r.rounds(t, "blue")
	step(latest)
	first := r.byNode(t)["n1"][0]
	first.Status.Plugged, first.Status.Pod = true, &weftv1.NeutronPortPod{Namespace: "blue", Name: "n1-0", UID: "n1-0"}
	if err := r.client.Status().Update(t.Context(), &first); err != nil {
		t.Fatal(err)
	}
	r.cloud.set("ports", first.Name, "status", "ACTIVE")
	step(latest)
	if err := r.client.Create(t.Context(), pods("n2", 1)[0]); err != nil {
		t.Fatal(err)
	}
	step(latest)
	var hosts []any
	for _, p := range r.cloud.all("ports") { // in the order of their creation
		hosts = append(hosts, p["binding:host_id"])
	}
	if want := append([]any{"host-n1", "host-n2"}, slices.Repeat([]any{"host-n1"}, ahead.LeastSpare)...); !slices.Equal(hosts, want) {
		t.Errorf("ports are created on %v, want %v", hosts, want)
	}
}

func request(name string) ctrl.Request {
	return ctrl.Request{NamespacedName: types.NamespacedName{Namespace: name, Name: name}}
}

// Ports that are not ACTIVE are read again soon, but a slow read is followed by a longer pause: Neutron needs the time for its own work.
func TestPausesBetweenReads(t *testing.T) {
	read := time.Unix(1000, 0)
	for _, c := range []struct {
		took, after, want time.Duration
		waiting           int
	}{
		{0, 0, soonest, 3},
		{10 * time.Millisecond, 0, soonest, 3},
		{2 * time.Second, 0, readPause * 2 * time.Second, 3},
		{2 * time.Second, time.Second, readPause*2*time.Second - time.Second, 3},
		{time.Hour, 0, latest, 3},
		{2 * time.Second, 0, reread, 0},
	} {
		r := &portReconciler{now: func() time.Time { return read.Add(c.after) }}
		k := &known{at: read, took: c.took, waiting: c.waiting, since: read}
		if got := r.untilRead(k); got != c.want {
			t.Errorf("%s after a read that took %s, with %d waiting: the next in %s, want %s", c.after, c.took, c.waiting, got, c.want)
		}
	}
}

// NeutronPorts follow their subnets: pods that start later have the name servers, routes and gateways of then.
func TestPortsFollowTheirSubnets(t *testing.T) {
	r := newRig(t, slices.Concat(blue(), node("n1"), pods("n1", 1))...)
	r.addBlue()
	r.cloud.set("subnets", "subnet", "gateway_ip", "10.244.0.1")
	now := time.Now()
	ports := r.ports(func() time.Time { return now })
	reconcile := func() weftv1.NeutronPort {
		t.Helper()
		if _, err := ports.Reconcile(t.Context(), request("blue")); err != nil {
			t.Fatal(err)
		}
		return r.byNode(t)["n1"][0]
	}
	reconcile()
	before := reconcile()
	if again := reconcile(); again.ResourceVersion != before.ResourceVersion {
		t.Errorf("a port in step was written: %+v, %+v", before, again)
	}
	r.cloud.set("subnets", "subnet", "dns_nameservers", []string{"192.0.2.53"})
	r.cloud.set("subnets", "subnet", "host_routes", []object{{"destination": "192.0.2.0/24", "nexthop": "10.244.0.9"}})
	r.cloud.set("networks", "net", "mtu", 1400)
	r.cloud.add("ports", object{
		"network_id": "net", "device_owner": "network:router_interface", "mac_address": "fa:16:3e:00:00:01",
		"fixed_ips": []object{{"subnet_id": "subnet", "ip_address": "10.244.0.1"}},
	})
	now = now.Add(reread)
	after := reconcile()
	want := before.Spec.DeepCopy()
	want.DNS, want.MTU, want.Routes = []string{"192.0.2.53"}, 1400, []weftv1.NeutronPortRoute{{Destination: "192.0.2.0/24", NextHop: "10.244.0.9"}}
	want.Addresses[0].GatewayMAC = "fa:16:3e:00:00:01"
	if after.Name != before.Name || len(after.Spec.Routes) != 1 || after.Spec.Routes[0] != want.Routes[0] || after.Spec.MTU != want.MTU ||
		!slices.Equal(after.Spec.DNS, want.DNS) || after.Spec.Addresses[0] != want.Addresses[0] {
		t.Errorf("port %s: %+v, want %+v", after.Name, after.Spec, *want)
	}
}

// OpenStack is minutes behind after a burst, or was away: a port that is not ACTIVE is replaced only if none becomes ACTIVE, or one that was
// plugged well after it has, or after a long time.
func TestPortsBehindABurst(t *testing.T) {
	began := time.Now()
	for name, c := range map[string]struct {
		// together and after have the seconds at which further ports become ACTIVE, of which the first were plugged together with the first port, and
		// the second a minute after it, in another Network. away is when OpenStack did not answer.
		together, after, away []int
		stuckAt               int
	}{
		"alone":                             {nil, nil, nil, 120},
		"others become ACTIVE":              {[]int{100, 200, 300}, nil, nil, 420},
		"always":                            {[]int{100, 200, 300, 400, 500, 600}, nil, nil, 600},
		"one that was plugged after it has": {[]int{100, 200, 300}, []int{210}, nil, 210},
		"and early":                         {nil, []int{70}, nil, 120},
		"OpenStack is away":                 {nil, nil, []int{50, 110, 180}, 300},
	} {
		var p pace.Pace
		k, other := &known{}, &known{}
		of := func(uid types.UID, ports ...weftv1.NeutronPort) *view.View {
			for i := range ports {
				ports[i].Spec.Network.UID, ports[i].Status.Plugged = string(uid), true
			}
			return &view.View{Network: &stackubev1.Network{ObjectMeta: metav1.ObjectMeta{UID: uid}}, Ports: ports}
		}
		port := func(name string, active bool) weftv1.NeutronPort {
			return weftv1.NeutronPort{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: weftv1.NeutronPortSpec{Active: active}}
		}
		stuckAt := -1
		for second := 0; second <= 1000 && stuckAt < 0; second += 10 {
			now := began.Add(time.Duration(second) * time.Second)
			together, after := []weftv1.NeutronPort{port("first", false)}, []weftv1.NeutronPort{}
			for i, at := range c.together {
				together = append(together, port(fmt.Sprintf("together-%d", i), second >= at))
			}
			for i, at := range c.after {
				if second >= 60 {
					after = append(after, port(fmt.Sprintf("after-%d", i), second >= at))
				}
			}
			p.Saw(k.see(of("blue", together...), now), now)
			p.Saw(other.see(of("red", after...), now), now)
			if slices.Contains(c.away, second) {
				p.Away(now)
			}
			if p.Stuck(k.inactive["first"], now) {
				stuckAt = second
			}
		}
		if stuckAt != c.stuckAt {
			t.Errorf("%s: replaced after %d s, want %d", name, stuckAt, c.stuckAt)
		}
	}
}
