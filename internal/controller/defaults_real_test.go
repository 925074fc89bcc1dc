//go:build real

package controller

import (
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	networkv1 "weft.dev/weft/api/openshift/v1"
)

// If no network is configured, the controller creates the ClusterNetwork of OpenShift's documentation, with the API server's service range,
// and nodes get subnets.
func TestDefaultClusterNetwork(t *testing.T) {
	c := newCluster(t)
	c.node("n1", "192.0.2.1")
	c.start(func(o *Options) { o.Defaults = true })
	c.awaitSubnet("n1", "192.0.2.1", "10.128.0.0/23")
	var network networkv1.ClusterNetwork
	c.must(c.Get(t.Context(), client.ObjectKey{Name: "default"}, &network))
	if network.Network != "10.128.0.0/14" || network.HostSubnetLength != 9 || network.ServiceNetwork != "172.30.0.0/16" || network.PluginName != networkv1.PluginNetworkPolicy {
		t.Errorf("%+v", network)
	}
	c.awaitEvent("ClusterNetwork", "default", "created, because no network is configured")
}
