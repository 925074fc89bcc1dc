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

func (c *cluster) ranges(node string, cidrs ...string) {
	c.t.Helper()
	var hs networkv1.HostSubnet
	c.list(&hs, node, func() { hs.EgressCIDRs = cidrs })
}

func (c *cluster) wants(namespace string, ips ...string) {
	c.t.Helper()
	var nn networkv1.NetNamespace
	c.list(&nn, namespace, func() { nn.EgressIPs = ips })
}

func (c *cluster) awaitEgressIPs(node string, ips ...string) {
	c.t.Helper()
	c.eventually("egressIPs of "+node, func() error {
		hs, err := c.hostSubnet(node)
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

func (c *cluster) awaitInUse(namespace, reason string, words ...string) {
	c.t.Helper()
	c.awaitVNID(namespace, func(nn networkv1.NetNamespace) bool {
		got := meta.FindStatusCondition(nn.Status.Conditions, networkv1.ConditionEgressIPsInUse)
		return got != nil && got.Reason == reason && !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(got.Message, word) })
	})
}

// Addresses are assigned to nodes with ranges, and removed from a node that is not ready. The namespace's condition says which are in use,
// or why they are not.
func TestEgressIPsAreAssigned(t *testing.T) {
	c := newCluster(t)
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
	c.wants("shop", "192.0.2.100")
	c.awaitInUse("shop", networkv1.ReasonEgressIPUnassigned, "192.0.2.100 is hosted by no node")
	c.awaitEvent("NetNamespace", "shop", "192.0.2.100 is hosted by no node")
	c.ranges("n1", "192.0.2.96/28")
	c.awaitEgressIPs("n1", "192.0.2.100")
	c.awaitInUse("shop", networkv1.ReasonInUse, "192.0.2.100 at n1")
	c.ranges("n2", "192.0.2.96/28")
	c.ready("n1", corev1.ConditionUnknown)
	c.awaitEgressIPs("n1")
	c.awaitEgressIPs("n2", "192.0.2.100")
	c.awaitInUse("shop", networkv1.ReasonInUse, "192.0.2.100 at n2")
	c.wants("cart", "192.0.2.101", "192.0.2.100")
	c.awaitInUse("shop", networkv1.ReasonEgressIPConflict, "is listed by cart as well")
	c.awaitInUse("cart", networkv1.ReasonEgressIPConflict, "is listed by shop as well")
	c.awaitEgressIPs("n2", "192.0.2.101")
	c.wants("cart", "192.0.2.101")
	c.ready("n1", corev1.ConditionTrue)
	c.wants("cart", "192.0.2.101", "192.0.2.102")
	c.awaitEgressIPs("n1", "192.0.2.102") // the other node has an address of the project already
	c.wants("cart")
	c.awaitVNID("cart", func(nn networkv1.NetNamespace) bool {
		return meta.FindStatusCondition(nn.Status.Conditions, networkv1.ConditionEgressIPsInUse) == nil
	})
}

// A node's cloud annotation limits how many addresses it gets. An annotation that cannot be parsed is reported.
func TestEgressIPCapacity(t *testing.T) {
	c := newCluster(t)
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
		c.wants(name, fmt.Sprintf("192.0.2.%d", 100+i))
	}
	c.ranges("n1", "192.0.2.0/24")
	c.awaitEgressIPs("n1", "192.0.2.101") // among projects with the same number of addresses, the first by name is cart
	c.awaitInUse("shop", networkv1.ReasonEgressIPUnassigned, "node n1 has all 1 that it can have")
	c.list(node, "n1", func() { node.Annotations = map[string]string{"cloud.network.openshift.io/egress-ipconfig": "nonsense"} })
	c.awaitEvent("Node", "n1", "annotation "+"cloud.network.openshift.io/egress-ipconfig")
	c.awaitEgressIPs("n1", "192.0.2.101", "192.0.2.100")
}
