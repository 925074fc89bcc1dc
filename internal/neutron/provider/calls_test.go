package provider

import (
	"context"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"weft.dev/weft/api/kubestack"
	"weft.dev/weft/internal/neutron/plug"
)

const project = "0123456789abcdef0123456789abcdef"

// A client repeats a call whose answer it does not wait for any longer. The repeated call runs after the former one: otherwise both would
// create the network, or one would use what the other one removes.
func TestCallsAboutOneNetwork(t *testing.T) {
	f := &fakeOpenStack{}
	f.add("projects", object{"id": project})
	n := &networks{cloud: f.cloud(t)}
	create := func(ctx context.Context) string {
		answer, err := n.CreateNetwork(ctx, &kubestack.CreateNetworkRequest{Network: &kubestack.Network{
			Name: "red", TenantID: project, Subnets: []*kubestack.Subnet{{Name: "red", Cidr: "10.0.0.0/24", Gateway: "10.0.0.1"}},
		}})
		if err != nil {
			t.Error(err)
		}
		return answer.GetError()
	}
	repeated := ""
	repeat := sync.OnceFunc(func() {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		repeated = create(ctx)
	})
	f.before = func(method, collection string) {
		if method == "POST" && collection == "networks" {
			repeat()
		}
	}
	if failed := create(t.Context()); failed != "" {
		t.Error(failed)
	}
	if !strings.Contains(repeated, `another call for "red" is under way`) {
		t.Errorf("the repeated call answers %q", repeated)
	}
	if all := f.ids("networks"); len(all) != 1 {
		t.Errorf("networks: %v", all)
	}
}

// An update without other hosts keeps the session affinity: the request has none.
func TestUpdateKeepsAffinity(t *testing.T) {
	f := &fakeOpenStack{}
	lb := f.add("loadbalancers", object{
		"name": "web", "project_id": project, "provisioning_status": "ACTIVE", "provider": "amphora", "vip_address": "10.0.0.9", "vip_subnet_id": "s",
	})
	f.add("listeners", object{
		"id": "l", "loadbalancer_id": lb, "name": "TCP-80", "protocol": "TCP", "protocol_port": 80, "default_pool_id": "p", "provisioning_status": "ACTIVE",
	})
	f.add("pools", object{
		"id": "p", "loadbalancer_id": lb, "name": "TCP-80", "protocol": "TCP", "provisioning_status": "ACTIVE", "session_persistence": object{"type": "SOURCE_IP"},
	})
	f.add("pools/p/members", object{"address": "10.0.0.2", "protocol_port": 8080})
	b := &balancers{cloud: f.cloud(t)}
	got, err := b.UpdateLoadBalancer(t.Context(), &kubestack.UpdateLoadBalancerRequest{
		Name: "web", Hosts: []*kubestack.HostPort{{Ipaddress: "10.0.0.2", ServicePort: 80, TargetPort: 8080}},
	})
	if err != nil || got.GetError() != "" || got.GetVip() != "10.0.0.9" {
		t.Errorf("%v: %v", got, err)
	}
	if len(f.writes) > 0 {
		t.Errorf("requests: %v", f.writes)
	}
}

// chains are the ports whose devices are on the host.
type chains struct{ ports []string }

func (c *chains) Setup(_ context.Context, pod plug.Pod) (made bool, err error) {
	if slices.Contains(c.ports, pod.Port.ID) {
		return false, nil
	}
	c.ports = append(c.ports, pod.Port.ID)
	return true, nil
}

func (c *chains) Teardown(_ context.Context, portID string) error {
	c.ports = slices.DeleteFunc(c.ports, func(id string) bool { return id == portID })
	return nil
}

func (*chains) Close() {}

// sandboxes has an empty path for every sandbox.
type sandboxes struct{}

func (sandboxes) NetNS(context.Context, string, string) (string, error) { return "", nil }

// A pod of the same name on another network, for instance after its namespace was created again, leaves nothing of the former pod's port,
// also if the former pod's teardown arrives late.
func TestSetupOnAnotherNetwork(t *testing.T) {
	f := &fakeOpenStack{}
	for _, id := range []string{"old", "new"} {
		f.add("networks", object{"id": id, "name": "red", "project_id": project, "mtu": 1442})
		f.add("subnets", object{"id": "subnet-" + id, "network_id": id, "ip_version": 4, "cidr": "10.0.0.0/24", "gateway_ip": "10.0.0.1"})
		f.add("ports", object{
			"id": "port-of-" + id, "network_id": id, "name": "kube_web_red_" + id, "status": "ACTIVE", "mac_address": "fa:16:3e:00:00:05",
			"binding:host_id": "n1", "device_owner": "compute:n1", "binding:vif_type": "ovs",
			"fixed_ips": []object{{"subnet_id": "subnet-" + id, "ip_address": "10.0.0.5"}},
		})
	}
	f.add("security-groups", object{"name": "kube-securitygroup-default", "project_id": project, "security_group_rules": []object{
		{"direction": "ingress", "ethertype": "IPv4"},
	}})
	recs, err := openRecords(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	plugin := &chains{}
	p := &pods{records: recs, Options: Options{Cloud: f.cloud(t), Plugin: plugin, Host: "n1", Sandboxes: sandboxes{}}}
	setup := func(network, sandbox string) {
		t.Helper()
		got, err := p.SetupPod(t.Context(), &kubestack.SetupPodRequest{
			PodName: "web", Namespace: "red", PodInfraContainerID: sandbox, Network: &kubestack.Network{Uid: network},
		})
		if err != nil || got.GetError() != "" {
			t.Fatal(got.GetError(), err)
		}
	}
	setup("old", "first")
	setup("new", "second")
	setup("new", "third")
	late, err := p.TeardownPod(t.Context(), &kubestack.TeardownPodRequest{
		PodName: "web", Namespace: "red", PodInfraContainerID: "first", Network: &kubestack.Network{Uid: "old"},
	})
	if err != nil || late.GetError() != "" {
		t.Error(late.GetError(), err)
	}
	if all := f.ids("ports"); !slices.Equal(all, []string{"port-of-new"}) {
		t.Errorf("ports: %v", all)
	}
	if all := plugin.ports; !slices.Equal(all, []string{"port-of-new"}) {
		t.Errorf("devices of ports: %v", plugin.ports)
	}
}

// A call that fails removes what it has created, and nothing else: neither the port nor the devices of a pod that an earlier call has set up,
// also before a restart of the provider.
func TestFailedSetupRemovesItsOwn(t *testing.T) {
	f := &fakeOpenStack{}
	f.add("networks", object{"id": "net", "name": "red", "project_id": project, "mtu": 1442})
	f.add("subnets", object{"id": "subnet", "network_id": "net", "ip_version": 4, "cidr": "10.0.0.0/24", "gateway_ip": "10.0.0.1"})
	f.add("security-groups", object{"name": "kube-securitygroup-default", "project_id": project, "security_group_rules": []object{
		{"direction": "ingress", "ethertype": "IPv4"},
	}})
	cloud, dir, plugin := f.cloud(t), t.TempDir(), &chains{}
	// setup serves a call by a provider that has just started. With fails, OpenStack does not answer whether the port is ACTIVE.
	setup := func(fails bool) {
		t.Helper()
		recs, err := openRecords(dir)
		if err != nil {
			t.Fatal(err)
		}
		asked := false
		f.away = func(request string) bool {
			if !strings.HasPrefix(request, "GET ports/") || asked {
				return false
			}
			asked = true
			return fails
		}
		p := &pods{records: recs, Options: Options{Cloud: cloud, Plugin: plugin, Host: "n1", Sandboxes: sandboxes{}}}
		got, err := p.SetupPod(t.Context(), &kubestack.SetupPodRequest{
			PodName: "web", Namespace: "red", PodInfraContainerID: "one", Network: &kubestack.Network{Uid: "net"},
		})
		if err != nil || strings.Contains(got.GetError(), "503") != fails || !fails && got.GetError() != "" {
			t.Fatalf("%q, %v; OpenStack is away: %t", got.GetError(), err, fails)
		}
	}
	holds := func(what string, ports, devices []string) {
		t.Helper()
		if all := f.ids("ports"); !slices.Equal(all, ports) || !slices.Equal(plugin.ports, devices) {
			t.Errorf("%s: ports %v, devices of %v; want %v and %v", what, all, plugin.ports, ports, devices)
		}
	}
	setup(true)
	holds("after a first call that failed", nil, nil)
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("records: %v, %v", left, err)
	}
	setup(false)
	own := f.ids("ports")
	holds("after a call", own, own)
	setup(true)
	holds("after the same call failed", own, own)
	plugin.ports = nil // the node has restarted
	setup(true)
	holds("after a call failed for a pod whose port exists and whose devices do not", own, nil)
	setup(false)
	holds("after a last call", own, own)
}
