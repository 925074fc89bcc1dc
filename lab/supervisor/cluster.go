package supervisor

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"weft.dev/weft/lab/plan"
)

// vxlanOverhead is what the tunnel adds to a packet, in bytes: outer IPv4, UDP, VXLAN and the inner Ethernet header.
const vxlanOverhead = 50

// clusterNetwork is the lab's ClusterNetwork "default" (network.openshift.io/v1).
func clusterNetwork(l plan.Lab) string {
	return fmt.Sprintf(`apiVersion: network.openshift.io/v1
kind: ClusterNetwork
metadata:
  name: default
clusterNetworks:
- CIDR: %[1]s
  hostSubnetLength: %[2]d
network: %[1]s
hostsubnetlength: %[2]d
serviceNetwork: %[3]s
pluginName: %[4]s
mtu: %[5]d
vxlanPort: %[6]d
`, l.ClusterCIDR, l.HostSubnetLength, l.ServiceCIDR, l.PluginName, l.MTU-vxlanOverhead, l.VXLANPort())
}

// restConfig returns the administrator's client configuration. It ignores proxies in the environment.
func (s *start) restConfig() (*rest.Config, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", s.lab.Kubeconfig())
	if err != nil {
		return nil, fmt.Errorf("read the lab's kubeconfig: %w", err)
	}
	cfg.Proxy = nil
	return cfg, nil
}

func (s *start) client() (kubernetes.Interface, error) {
	cfg, err := s.restConfig()
	if err != nil {
		return nil, err
	}
	c, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("connect to the lab's API server: %w", err)
	}
	return c, nil
}

// registerNodes makes the Node objects if there is no kubelet.
func (s *start) registerNodes(ctx context.Context) error {
	if s.lab.Runtime != plan.RuntimeCNI {
		return nil
	}
	c, err := s.client()
	if err != nil {
		return err
	}
	var errs []error
	for _, n := range s.lab.AllNodes() {
		var cidrs []string
		if s.lab.Network.Flannel() {
			cidrs = s.lab.PodCIDRs(n)
		}
		errs = append(errs, registerNode(ctx, c, n, cidrs))
	}
	return errors.Join(errs...)
}

func registerNode(ctx context.Context, c kubernetes.Interface, n plan.Node, cidrs []string) error {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: map[string]string{corev1.LabelHostname: n.Name}}}
	if len(cidrs) > 0 {
		// kube-controller-manager would write this annotation; flanneld panics on a Node without annotations.
		node.Annotations = map[string]string{"node.alpha.kubernetes.io/ttl": "0"}
		node.Spec.PodCIDR, node.Spec.PodCIDRs = cidrs[0], cidrs
	}
	made, err := c.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("make the Node %s: %w", n.Name, err)
	}
	made.Status.Addresses = []corev1.NodeAddress{
		{Type: corev1.NodeInternalIP, Address: n.IP.String()}, {Type: corev1.NodeHostName, Address: n.Name},
	}
	made.Status.Conditions = []corev1.NodeCondition{{
		Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "LabNode", Message: "a node without a kubelet",
		LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now(),
	}}
	if _, err := c.CoreV1().Nodes().UpdateStatus(ctx, made, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("set the addresses of Node %s: %w", n.Name, err)
	}
	return nil
}
