//go:build real

package controller

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	networkv1 "weft.dev/weft/api/openshift/v1"
)

// list changes a list in a HostSubnet or a NetNamespace.
func (c *cluster) list(obj client.Object, name string, change func()) {
	c.t.Helper()
	c.eventually("writing "+name, func() error {
		if err := c.Get(c.t.Context(), client.ObjectKey{Name: name}, obj); err != nil {
			return err
		}
		change()
		return c.Update(c.t.Context(), obj)
	})
}

// egressIPs are the egress IPs of a cluster.
type egressIPs struct{ c *cluster }

func (e egressIPs) ranges(node string, cidrs ...string) {
	e.c.t.Helper()
	var hs networkv1.HostSubnet
	e.c.list(&hs, node, func() { hs.EgressCIDRs = cidrs })
}

func (e egressIPs) wants(namespace string, ips ...string) {
	e.c.t.Helper()
	var nn networkv1.NetNamespace
	e.c.list(&nn, namespace, func() { nn.EgressIPs = ips })
}

func (e egressIPs) awaitEgressIPs(node string, ips ...string) {
	e.c.t.Helper()
	e.c.eventually("egressIPs of "+node, func() error {
		hs, err := e.c.hostSubnet(node)
		if err == nil && !slices.Equal(hs.EgressIPs, ips) {
			return fmt.Errorf("they are %v, want %v", hs.EgressIPs, ips)
		}
		return err
	})
}

func (c *cluster) ready(node string, status corev1.ConditionStatus) {
	c.t.Helper()
	c.eventually("condition of "+node, func() error {
		var n corev1.Node
		if err := c.Get(c.t.Context(), client.ObjectKey{Name: node}, &n); err != nil {
			return err
		}
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status}}
		return c.Status().Update(c.t.Context(), &n)
	})
}

func (e egressIPs) awaitInUse(namespace, reason string, words ...string) {
	e.c.t.Helper()
	e.c.awaitVNID(namespace, func(nn networkv1.NetNamespace) bool {
		got := meta.FindStatusCondition(nn.Status.Conditions, networkv1.ConditionEgressIPsInUse)
		return got != nil && got.Reason == reason && !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(got.Message, word) })
	})
}

// Addresses are assigned to nodes with ranges, and removed from a node that is not ready. The namespace's condition says which are in use,
// or why they are not.
func TestEgressIPsAreAssigned(t *testing.T) {
	c := newCluster(t)
	e := egressIPs{c}
	c.network(networkv1.PluginMultitenant, usualRange())
	for _, name := range []string{"shop", "cart"} {
		c.namespace(name)
	}
	c.node("n1", "192.0.2.1")
	c.node("n2", "192.0.2.2")
	c.start(nil)
	for _, name := range []string{"shop", "cart"} {
		c.awaitVNID(name, func(networkv1.NetNamespace) bool { return true })
	}
	c.awaitSubnet("n1", "192.0.2.1", "")
	c.awaitSubnet("n2", "192.0.2.2", "")
	e.wants("shop", "192.0.2.100")
	e.awaitInUse("shop", networkv1.ReasonEgressIPUnassigned, "192.0.2.100 is hosted by no node")
	c.awaitEvent("NetNamespace", "shop", "192.0.2.100 is hosted by no node")
	e.ranges("n1", "192.0.2.96/28")
	e.awaitEgressIPs("n1", "192.0.2.100")
	e.awaitInUse("shop", networkv1.ReasonInUse, "192.0.2.100 at n1")
	e.ranges("n2", "192.0.2.96/28")
	c.ready("n1", corev1.ConditionUnknown)
	e.awaitEgressIPs("n1")
	e.awaitEgressIPs("n2", "192.0.2.100")
	e.awaitInUse("shop", networkv1.ReasonInUse, "192.0.2.100 at n2")
	e.wants("cart", "192.0.2.101", "192.0.2.100")
	e.awaitInUse("shop", networkv1.ReasonEgressIPConflict, "is listed by cart as well")
	e.awaitInUse("cart", networkv1.ReasonEgressIPConflict, "is listed by shop as well")
	e.awaitEgressIPs("n2", "192.0.2.101")
	e.wants("cart", "192.0.2.101")
	c.ready("n1", corev1.ConditionTrue)
	e.wants("cart", "192.0.2.101", "192.0.2.102")
	e.awaitEgressIPs("n1", "192.0.2.102") // the other node has an address of the project already
	e.wants("cart")
	c.awaitVNID("cart", func(nn networkv1.NetNamespace) bool {
		return meta.FindStatusCondition(nn.Status.Conditions, networkv1.ConditionEgressIPsInUse) == nil
	})
}

// A node's cloud annotation limits how many addresses it gets. An annotation that cannot be parsed is reported.
func TestEgressIPCapacity(t *testing.T) {
	c := newCluster(t)
	e := egressIPs{c}
	c.network(networkv1.PluginNetworkPolicy, usualRange())
	for _, name := range []string{"shop", "cart"} {
		c.namespace(name)
	}
	node := c.node("n1", "192.0.2.1")
	c.start(nil)
	c.awaitSubnet("n1", "192.0.2.1", "")
	c.list(node, "n1", func() {
		node.Annotations = map[string]string{"cloud.network.openshift.io/egress-ipconfig": `[{"interface":"eth0","ifaddr":{"ipv4":"192.0.2.0/24"},"capacity":{"ipv4":1}}]`}
	})
	for i, name := range []string{"shop", "cart"} {
		c.awaitVNID(name, func(networkv1.NetNamespace) bool { return true })
		e.wants(name, fmt.Sprintf("192.0.2.%d", 100+i))
	}
	e.ranges("n1", "192.0.2.0/24")
	e.awaitEgressIPs("n1", "192.0.2.101") // among projects with the same number of addresses, the first by name is cart
	e.awaitInUse("shop", networkv1.ReasonEgressIPUnassigned, "node n1 has all 1 that it can have")
	c.list(node, "n1", func() { node.Annotations = map[string]string{"cloud.network.openshift.io/egress-ipconfig": "nonsense"} })
	c.awaitEvent("Node", "n1", "annotation "+"cloud.network.openshift.io/egress-ipconfig")
	e.awaitEgressIPs("n1", "192.0.2.101", "192.0.2.100")
}
