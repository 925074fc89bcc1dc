//go:build real

package controller

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	networkv1 "weft.dev/weft/api/openshift/v1"
)

func usualRange() networkv1.ClusterNetworkEntry {
	return networkv1.ClusterNetworkEntry{CIDR: "10.128.0.0/14", HostSubnetLength: 9}
}

func TestNodesGetSubnets(t *testing.T) {
	c := newCluster(t)
	a := c.node("a", "192.0.2.1")
	c.start(nil)
	c.network(networkv1.PluginSubnet, usualRange()) // the controller waited for it
	hs := c.awaitSubnet("a", "192.0.2.1", "10.128.0.0/23")
	if hs.Annotations[networkv1.AnnotationNodeUID] != string(a.UID) || hs.Host != "a" {
		t.Errorf("%+v", hs)
	}
	c.awaitCondition(networkv1.ConditionReady, networkv1.ReasonAllocated)
	c.awaitCondition(networkv1.ConditionValid, networkv1.ReasonValid)
	c.node("b", "192.0.2.2")
	c.awaitSubnet("b", "192.0.2.2", "10.129.0.0/23")

	c.address(a, "192.0.2.11") // updated in place
	if moved := c.awaitSubnet("a", "192.0.2.11", "10.128.0.0/23"); moved.UID != hs.UID {
		t.Error("the HostSubnet was made again")
	}

	c.must(c.Delete(t.Context(), a)) // created again at once, with another UID
	a = c.node("a", "192.0.2.12")
	hs = c.awaitSubnet("a", "192.0.2.12", "10.128.0.0/23") // its pods keep their addresses
	if hs.Annotations[networkv1.AnnotationNodeUID] != string(a.UID) {
		t.Errorf("annotations %v", hs.Annotations)
	}

	c.must(c.Delete(t.Context(), a))
	c.awaitGone(&hs)
	c.node("d", "192.0.2.4")
	c.awaitSubnet("d", "192.0.2.4", "10.130.0.0/23") // the order does not start over

	b, err := c.hostSubnet("b") // deleted by hand: created again
	c.must(err)
	c.must(c.Delete(t.Context(), &b))
	c.awaitSubnet("b", "192.0.2.2", "10.129.0.0/23")
}

func TestHostsWithoutNode(t *testing.T) {
	c := newCluster(t)
	c.network(networkv1.PluginSubnet, usualRange())
	c.start(nil)
	router := func(name, vnid string) *networkv1.HostSubnet {
		return &networkv1.HostSubnet{
			ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{
				networkv1.AnnotationAssignSubnet: "true", networkv1.AnnotationFixedVNID: vnid,
			}},
			Host: name, HostIP: "192.0.2.50",
		}
	}
	c.must(c.Create(t.Context(), router("f5", "7")))
	hs := c.awaitSubnet("f5", "192.0.2.50", "10.128.0.0/23")
	if _, waiting := hs.Annotations[networkv1.AnnotationAssignSubnet]; waiting || hs.Annotations[networkv1.AnnotationFixedVNID] != "7" {
		t.Errorf("annotations %v", hs.Annotations)
	}
	c.must(c.Create(t.Context(), router("f6", "many")))
	hs = c.awaitSubnet("f6", "192.0.2.50", "10.129.0.0/23")
	if _, kept := hs.Annotations[networkv1.AnnotationFixedVNID]; kept {
		t.Errorf("annotations %v", hs.Annotations)
	}
	c.awaitEvent("HostSubnet", "f6", "fixed-vnid-host removed")
	c.node("f5", "192.0.2.50") // it becomes a Node: gets its annotation, keeps its subnet
	c.eventually("stamp", func() error {
		hs, err := c.hostSubnet("f5")
		if err == nil && (hs.Annotations[networkv1.AnnotationNodeUID] == "" || hs.Subnet != "10.128.0.0/23") {
			err = fmt.Errorf("it is %+v", hs)
		}
		return err
	})
}

func TestExhaustionIsReportedAndEnds(t *testing.T) {
	c := newCluster(t)
	network := c.network(networkv1.PluginSubnet, networkv1.ClusterNetworkEntry{CIDR: "10.1.0.0/30", HostSubnetLength: 2})
	c.start(nil)
	c.node("a", "192.0.2.1")
	c.awaitSubnet("a", "192.0.2.1", "10.1.0.0/30")
	c.node("b", "192.0.2.2")
	c.awaitEvent("Node", "b", "add a range to clusterNetworks")
	c.awaitCondition(networkv1.ConditionReady, networkv1.ReasonExhausted, "no subnet for b")
	c.must(c.Get(t.Context(), client.ObjectKeyFromObject(network), network))
	network.ClusterNetworks = append(network.ClusterNetworks, usualRange()) // a range is added at run time
	c.must(c.Update(t.Context(), network))
	c.awaitSubnet("b", "192.0.2.2", "10.128.0.0/23")
	c.awaitCondition(networkv1.ConditionReady, networkv1.ReasonAllocated)
}

func TestBadObjectsBlockNoOthers(t *testing.T) {
	c := newCluster(t)
	c.network(networkv1.PluginSubnet, usualRange())
	c.node("inside", "10.128.0.9")
	c.node("six", "fd00::1")
	c.must(c.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "bare"}}))
	c.must(c.Create(t.Context(), &networkv1.HostSubnet{
		ObjectMeta: metav1.ObjectMeta{Name: "tiny"}, Host: "tiny", HostIP: "192.0.2.9", Subnet: "10.131.0.0/31",
	}))
	c.start(nil)
	c.node("good", "192.0.2.1")
	c.awaitSubnet("good", "192.0.2.1", "10.128.0.0/23")
	c.awaitCondition(networkv1.ConditionReady, networkv1.ReasonIncomplete, "node inside", "node six", "node bare")
	c.awaitEvent("Node", "inside", "lies in the cluster network 10.128.0.0/14")
	c.eventually("condition of tiny", func() error {
		hs, err := c.hostSubnet("tiny")
		if err == nil && !meta.IsStatusConditionFalse(hs.Status.Conditions, networkv1.ConditionValid) {
			err = fmt.Errorf("conditions %+v", hs.Status.Conditions)
		}
		return err
	})
}

// A ClusterNetwork that the validation rules did not refuse (they may be newer than the object) is reported, and nothing is assigned.
func TestBadClusterNetworkWaits(t *testing.T) {
	c := newCluster(t)
	network := &networkv1.ClusterNetwork{
		ObjectMeta: metav1.ObjectMeta{Name: "default"}, ServiceNetwork: "172.30.0.0/16", PluginName: networkv1.PluginSubnet,
		Network: "10.1.0.0/30", HostSubnetLength: 2,
		ClusterNetworks: []networkv1.ClusterNetworkEntry{{CIDR: "10.1.0.0/30", HostSubnetLength: 2}},
	}
	c.must(c.Create(t.Context(), network))
	c.withoutRules(func() {
		network.ClusterNetworks[0].CIDR, network.Network, network.HostSubnetLength = "10.1.0.1/30", "", 0
		c.must(c.Update(t.Context(), network))
	})
	r := c.start(nil)
	c.node("a", "192.0.2.1")
	c.awaitCondition(networkv1.ConditionValid, networkv1.ReasonInvalid, "clusterNetworks[0].CIDR", "write 10.1.0.0/30")
	c.awaitEvent("ClusterNetwork", "default", "write 10.1.0.0/30")
	if _, err := c.hostSubnet("a"); !apierrors.IsNotFound(err) {
		t.Errorf("a subnet was given out: %v", err)
	}
	c.must(c.Get(t.Context(), client.ObjectKeyFromObject(network), network))
	network.ClusterNetworks[0] = usualRange()
	c.must(c.Update(t.Context(), network))
	c.awaitSubnet("a", "192.0.2.1", "10.128.0.0/23")
	c.awaitCondition(networkv1.ConditionValid, networkv1.ReasonValid)
	select {
	case err := <-r.done:
		t.Errorf("it ended: %v", err)
		r.done <- err
	default:
	}
}

func TestNamespacesGetVNIDs(t *testing.T) {
	c := newCluster(t)
	c.network(networkv1.PluginMultitenant, usualRange())
	c.start(nil)
	c.awaitVNID("default", func(nn networkv1.NetNamespace) bool { return nn.NetID == 0 })
	a, b := c.namespace("wt-a"), c.namespace("wt-b")
	random := func(nn networkv1.NetNamespace) bool { return nn.NetID >= 10 && nn.NetID <= networkv1.VNIDMax }
	idA, idB := c.awaitVNID(a.Name, random).NetID, c.awaitVNID(b.Name, random)
	if idA == idB.NetID {
		t.Errorf("both have %d", idA)
	}

	c.request("wt-a", "join:wt-b")
	c.awaitVNID("wt-a", func(nn networkv1.NetNamespace) bool { return answered(nn) && nn.NetID == idB.NetID })
	c.request("wt-a", "isolate")
	c.awaitVNID("wt-a", func(nn networkv1.NetNamespace) bool { return answered(nn) && nn.NetID != idB.NetID && random(nn) })
	c.request("wt-a", "global")
	c.awaitVNID("wt-a", func(nn networkv1.NetNamespace) bool { return answered(nn) && nn.NetID == 0 })

	c.request("wt-a", "join:wt-later") // the request waits, and a condition says so
	c.awaitVNID("wt-a", func(nn networkv1.NetNamespace) bool {
		return meta.IsStatusConditionFalse(nn.Status.Conditions, networkv1.ConditionValid) && nn.NetID == 0
	})
	c.namespace("wt-later")
	later := c.awaitVNID("wt-later", random).NetID
	c.awaitVNID("wt-a", func(nn networkv1.NetNamespace) bool {
		return answered(nn) && nn.NetID == later && meta.IsStatusConditionTrue(nn.Status.Conditions, networkv1.ConditionValid)
	})

	c.must(c.Delete(t.Context(), &idB)) // deleted by hand: created again
	c.awaitVNID("wt-b", func(nn networkv1.NetNamespace) bool { return nn.UID != idB.UID && random(nn) })

	c.removeNamespace(b)
	c.awaitGone(&networkv1.NetNamespace{ObjectMeta: metav1.ObjectMeta{Name: "wt-b"}})
}

func TestVNIDsStayWithPoliciesAndAreNoneOnAFlatNetwork(t *testing.T) {
	c := newCluster(t)
	network := c.network(networkv1.PluginSubnet, usualRange())
	c.start(nil)
	c.node("a", "192.0.2.1")
	c.awaitSubnet("a", "192.0.2.1", "")
	var list networkv1.NetNamespaceList
	if c.must(c.List(t.Context(), &list)); len(list.Items) > 0 {
		t.Errorf("%d NetNamespaces on a flat network", len(list.Items))
	}
	c.eventually("change of mode", func() error {
		c.must(c.Get(t.Context(), client.ObjectKeyFromObject(network), network))
		network.PluginName = networkv1.PluginNetworkPolicy
		return c.Update(t.Context(), network)
	})
	before := c.awaitVNID("kube-system", func(networkv1.NetNamespace) bool { return true })
	c.request("kube-system", "global")
	c.awaitVNID("kube-system", func(nn networkv1.NetNamespace) bool { return answered(nn) && nn.NetID == before.NetID })
	c.awaitEvent("NetNamespace", "kube-system", "VNIDs change only with plugin")
}

// In steady state nothing is written, with or without lasting problems.
func TestNothingIsWrittenInSteadyState(t *testing.T) {
	c := newCluster(t)
	c.network(networkv1.PluginMultitenant, usualRange())
	nodes := []*corev1.Node{c.node("a", "192.0.2.1"), c.node("b", "192.0.2.2"), c.node("bad", "10.128.0.1")}
	r := c.start(nil)
	c.awaitSubnet("a", "192.0.2.1", "")
	c.awaitSubnet("b", "192.0.2.2", "")
	c.awaitEvent("HostSubnet", "a", "is given to a")
	c.awaitEvent("HostSubnet", "b", "is given to b")
	c.awaitVNID("default", func(networkv1.NetNamespace) bool { return true })
	c.awaitVNID("kube-system", func(networkv1.NetNamespace) bool { return true })
	c.awaitEvent("Node", "bad", "lies in the cluster network")
	c.awaitCondition(networkv1.ConditionReady, networkv1.ReasonIncomplete)
	before := len(r.written())
	again := c.start(nil) // takes over in between
	for beat := range 6 { // heartbeats, over several resyncs
		for _, node := range nodes {
			node.Status.Conditions = []corev1.NodeCondition{{
				Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Unix(int64(1000+beat), 0),
			}}
			c.must(c.Status().Update(t.Context(), node))
		}
		if beat == 3 {
			if late := r.written()[before:]; len(late) > 0 {
				t.Errorf("written in steady state: %v", late)
			}
			c.stop(r)
		}
		wait(t, time.Second) // for resyncs, which are one second apart and leave no trace
	}
	quiet := again.written()
	c.node("last", "192.0.2.9") // proves that the second replica leads
	c.awaitSubnet("last", "192.0.2.9", "")
	for _, w := range quiet {
		if !strings.Contains(w, "/events") { // a new leader reports a lasting problem once more
			t.Errorf("the new leader wrote %s", w)
		}
	}
}

// wait waits for a duration, in tests that are about the passage of time.
func wait(t *testing.T, d time.Duration) {
	t.Helper()
	select {
	case <-t.Context().Done():
	case <-time.After(d):
	}
}

// A leader that loses the API server gives up, the other replica takes over, and nothing is assigned twice.
func TestFailover(t *testing.T) {
	c := newCluster(t)
	c.network(networkv1.PluginMultitenant, networkv1.ClusterNetworkEntry{CIDR: "10.1.0.0/16", HostSubnetLength: 8})
	replicas := []*replica{c.start(nil), c.start(nil)}
	join := func(from, to int) {
		for i := from; i < to; i++ {
			c.node(fmt.Sprintf("node-%02d", i), fmt.Sprintf("192.0.2.%d", i+1))
		}
	}
	join(0, 10)
	c.awaitSubnet("node-03", "192.0.2.4", "")
	leader := slices.IndexFunc(replicas, func(r *replica) bool { return len(r.written()) > 0 })
	if leader < 0 {
		t.Fatal("no replica leads")
	}
	replicas[leader].cut.Store(true)
	join(10, 30)
	select {
	case err := <-replicas[leader].done:
		if err == nil {
			t.Error("a leader that lost its lease ended without an error")
		}
		replicas[leader].done <- err
	case <-time.After(deadline):
		t.Fatal("a leader without API server does not give up")
	}
	subnets := map[string]string{}
	for i := range 30 {
		hs := c.awaitSubnet(fmt.Sprintf("node-%02d", i), fmt.Sprintf("192.0.2.%d", i+1), "")
		if other, ok := subnets[hs.Subnet]; ok {
			t.Errorf("%s and %s both have %s", hs.Name, other, hs.Subnet)
		}
		subnets[hs.Subnet] = hs.Name
	}
	c.awaitCondition(networkv1.ConditionReady, networkv1.ReasonAllocated)
}

// Another controller, or an administrator, assigns at the same time: values that the cache does not have yet are not assigned.
func TestAllocationSeesWhatTheCacheDoesNot(t *testing.T) {
	c := newCluster(t)
	c.network(networkv1.PluginSubnet, usualRange())
	c.start(nil)
	for i := range 15 {
		byHand := fmt.Sprintf("hand-%d", i)
		c.must(c.Create(t.Context(), &networkv1.HostSubnet{
			ObjectMeta: metav1.ObjectMeta{Name: byHand}, Host: byHand, HostIP: "192.0.2.99",
			Subnet: fmt.Sprintf("10.%d.%d.0/23", 128+(2*i)%4, 2*((2*i)/4)),
		}))
		c.node(fmt.Sprintf("node-%d", i), fmt.Sprintf("192.0.2.%d", i+1))
	}
	seen := map[string]string{}
	for i := range 15 {
		hs := c.awaitSubnet(fmt.Sprintf("node-%d", i), fmt.Sprintf("192.0.2.%d", i+1), "")
		seen[hs.Subnet] = hs.Name
	}
	if len(seen) != 15 {
		t.Errorf("subnets %v", seen)
	}
	for i := range 15 {
		hs, err := c.hostSubnet(fmt.Sprintf("hand-%d", i))
		c.must(err)
		if other, ok := seen[hs.Subnet]; ok {
			t.Errorf("%s and %s both have %s", hs.Name, other, hs.Subnet)
		}
	}
}

// The manifest runs the controller as documented.
func TestManifest(t *testing.T) {
	c := newClient(t)
	var deployment appsv1.Deployment
	if err := c.Get(t.Context(), client.ObjectKey{Namespace: "weft", Name: "weft-controller"}, &deployment); err != nil {
		t.Fatal(err)
	}
	container := deployment.Spec.Template.Spec.Containers[0]
	if *deployment.Spec.Replicas != 2 || !deployment.Spec.Template.Spec.HostNetwork || !*container.SecurityContext.ReadOnlyRootFilesystem {
		t.Errorf("%+v", deployment.Spec)
	}
	// Requests that must be forbidden.
	config := server.ConfigAs("weft", "weft-controller")
	restricted, err := client.New(config, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var secrets corev1.SecretList
	if err := restricted.List(t.Context(), &secrets); !apierrors.IsForbidden(err) {
		t.Errorf("it may list secrets: %v", err)
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "x"}}
	if err := restricted.Create(t.Context(), node, client.DryRunAll); !apierrors.IsForbidden(err) {
		t.Errorf("it may create nodes: %v", err)
	}
}

func TestRunWithoutConfig(t *testing.T) {
	if err := Run(t.Context(), Options{}); err == nil {
		t.Error("it runs")
	}
	if err := Run(t.Context(), Options{Config: &rest.Config{Host: "https://127.0.0.1:1"}}); err == nil {
		t.Error("it runs without an API server")
	}
}
