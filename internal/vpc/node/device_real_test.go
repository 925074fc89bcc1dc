//go:build real

package node_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/ovn/ovntest"
	"weft.dev/weft/internal/placement"
	"weft.dev/weft/internal/vpc/nat"
)

// withoutAddress takes all addresses from gateway gw2 and gives it another one: it has its routes again, which the kernel removes with the last
// address.
func withoutAddress(n *nodeUnderTest, gate *ovntest.Pod) {
	ctx, t := n.t.Context(), n.t
	shows := func(what, argv, want string) {
		ovntest.Eventually(t, what, func() bool {
			out := ovntest.Run(t, gate.NetNS, "ip", strings.Fields(argv)...)
			return want == "" && out == "" || want != "" && strings.Contains(out, want)
		})
	}
	g := &kubeovn.VpcNatGateway{}
	must(t, n.Get(ctx, client.ObjectKey{Name: "gw2"}, g))
	shows("the gateway has an address of its own", "-o -4 addr show net1", "192.168.7.")
	g.Spec.NoDefaultEIP = true
	must(t, n.Update(ctx, g))
	shows("it has no address", "-o -4 addr show net1", "")
	eip := &kubeovn.IptablesEIP{ObjectMeta: metav1.ObjectMeta{Name: "of-gw2"}, Spec: kubeovn.IptablesEIPSpec{NatGwDp: "gw2", ExternalSubnet: "other-network"}}
	must(t, n.Create(ctx, eip))
	shows("it has the EIP", "-o -4 addr show net1", "192.168.7.")
	shows("it has its routes", "route show", "default via 192.168.7.1 dev net1")
	must(t, n.Delete(ctx, eip))
}

// A gateway whose NetworkAttachmentDefinition names a device that its node does not have does not start: the answer to its ADD and the condition
// of the VpcNatGateway name the field and the device. Another gateway has a toleration that the API server refuses: its condition names the field.
// The gateway of the users is not affected, and the first one starts once the node has the device.
func TestGatewayWithoutDevice(t *testing.T) {
	n, host, _ := newGateways(t, `
---
apiVersion: kubeovn.io/v1
kind: Subnet
metadata: {name: other-network}
spec: {protocol: IPv4, provider: other-network.kube-system, cidrBlock: 192.168.7.0/24, gateway: 192.168.7.1}
---
apiVersion: k8s.cni.cncf.io/v1
kind: NetworkAttachmentDefinition
metadata: {name: other-network, namespace: kube-system}
spec: {config: '{"cniVersion": "0.3.0", "type": "macvlan", "master": "ens99", "mode": "bridge"}'}
---
kind: VpcNatGateway
apiVersion: kubeovn.io/v1
metadata: {name: gw2}
spec: {vpc: test-vpc-1, subnet: net1, lanIp: 10.0.1.253, externalSubnets: [other-network]}
---
kind: VpcNatGateway
apiVersion: kubeovn.io/v1
metadata: {name: gw3}
spec: {vpc: test-vpc-1, subnet: net1, lanIp: 10.0.1.252, tolerations: [{key: a, operator: Is}]}
`)
	ctx := t.Context()
	bad, good := n.makeGateway("gw2"), n.makeGateway("gw1")
	var object corev1.Pod
	must(t, n.Get(ctx, client.ObjectKey{Namespace: "kube-system", Name: bad}, &object))
	pod := ovntest.NewPod(t)
	req := &cni.Request{
		ContainerID: "sandbox-bad", IfName: "eth0", Netns: pod.ProcPath(),
		Args: cni.Args{PodNamespace: "kube-system", PodName: bad, PodUID: string(object.UID)},
	}
	rec, err := n.network.Plan(ctx, req, placement.Decision{Network: "vpc"}, attach.InUse{})
	must(t, err)
	rec.ContainerID, rec.IfName, rec.Netns = req.ContainerID, req.IfName, req.Netns
	rec.PodNamespace, rec.PodName, rec.PodUID = "kube-system", bad, string(object.UID)
	_, err = n.network.Connect(ctx, &rec)
	if err == nil || !strings.Contains(err.Error(), "spec.config.master") || !strings.Contains(err.Error(), "ens99") {
		t.Errorf("the ADD of a gateway without its device: %v", err)
	}
	must(t, n.network.Close(ctx, rec))
	if failed := n.network.Remove(ctx, []attach.Record{rec}); len(failed) > 0 {
		t.Fatal(failed)
	}
	gateway := func(name string) *kubeovn.VpcNatGateway {
		g := &kubeovn.VpcNatGateway{}
		must(t, n.Get(ctx, client.ObjectKey{Name: name}, g))
		return g
	}
	ovntest.Eventually(t, "the condition names the field and the device", func() bool {
		ready := meta.FindStatusCondition(gateway("gw2").Status.Conditions, kubeovn.ConditionReady)
		return ready != nil && strings.Contains(ready.Message, "spec.config.master") && strings.Contains(ready.Message, "ens99")
	})
	ovntest.Eventually(t, "the condition of a gateway whose StatefulSet is refused names the field", func() bool {
		ready := meta.FindStatusCondition(gateway("gw3").Status.Conditions, kubeovn.ConditionReady)
		return ready != nil && ready.Reason == kubeovn.ReasonRefused && strings.Contains(ready.Message, "tolerations[0].operator")
	})
	n.add("kube-system", good)
	ovntest.Eventually(t, "the other gateway is ready", func() bool { return gateway("gw1").Status.Ready })
	host.Reaches("192.168.100.231")
	ovntest.Run(t, n.site.Chassis[0].NetNS, "ip", "link", "add", "ens99", "type", "veth", "peer", "name", "ens99p")
	ovntest.Run(t, n.site.Chassis[0].NetNS, "ip", "link", "set", "ens99", "up")
	gate, _ := n.add("kube-system", bad)
	ovntest.Eventually(t, "the gateway is ready once its node has the device", func() bool { return gateway("gw2").Status.Ready })
	device := func(name string) {
		definition := nat.Definition()
		must(t, n.Get(ctx, client.ObjectKey{Namespace: "kube-system", Name: "other-network"}, definition))
		must(t, unstructured.SetNestedField(definition.Object, `{"type":"macvlan","master":"`+name+`","mode":"bridge"}`, "spec", "config"))
		must(t, n.Update(ctx, definition))
	}
	withoutAddress(n, gate)
	device("ens98")
	ovntest.Eventually(t, "a running gateway whose device does not exist any more is not ready, and its condition names it", func() bool {
		g := gateway("gw2")
		ready := meta.FindStatusCondition(g.Status.Conditions, kubeovn.ConditionReady)
		return !g.Status.Ready && ready != nil && strings.Contains(ready.Message, "ens98")
	})
	device("ens99")
	ovntest.Eventually(t, "it is ready again", func() bool { return gateway("gw2").Status.Ready })
	n.deleteAll(client.ObjectKey{Namespace: "kube-system", Name: good}, client.ObjectKey{Namespace: "kube-system", Name: bad})
}
