package supervisor

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"weft.dev/weft/lab/controlplane"
	"weft.dev/weft/lab/ground"
	"weft.dev/weft/lab/pki"
	"weft.dev/weft/lab/plan"
	"weft.dev/weft/lab/process"
	"weft.dev/weft/lab/report"
)

// cluster is the Kubernetes cluster of a lab: the API server, and the objects in it that every lab has.
type cluster struct {
	lab     plan.Lab
	plane   *controlplane.Plane
	group   *process.Group
	journal *journal
	kubectl kubectl
	flannel flannel   // has the configuration of a flannel network, if its leases are in etcd
	router  podRouter // starts once the objects that it watches are defined
}

// newPlane makes the credentials of the control plane. bin is the directory of Kubernetes' programs.
func newPlane(l plan.Lab, space ground.Space, api netip.Addr, bin string) (*controlplane.Plane, error) {
	ca, err := pki.New(l.Path("pki"))
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(l.Path("kubeconfig"), 0o700); err != nil {
		return nil, fmt.Errorf("make the folder of kubeconfigs: %w", err)
	}
	plane := &controlplane.Plane{Lab: l, Space: space, Bin: bin, HostAddr: api, CA: ca}
	return plane, plane.Credentials()
}

func (c cluster) start(ctx context.Context) error {
	err := c.journal.step("etcd and API server", func() error {
		ctx, cancel := context.WithTimeout(ctx, stepLimit)
		defer cancel()
		if err := c.group.Start(ctx, c.plane.Etcd()); err != nil {
			return err
		}
		return c.group.Start(ctx, c.plane.APIServer())
	})
	if err != nil {
		return err
	}
	if err := c.installAPI(ctx); err != nil {
		return err
	}
	return c.journal.step("nodes in the cluster", func() error { return c.registerNodes(ctx) })
}

// installAPI installs Weft's resource definitions and the cluster network, if the manifests are known.
func (c cluster) installAPI(ctx context.Context) error {
	crds := filepath.Join(c.lab.DeployDir, "crds")
	if c.lab.DeployDir == "" || !isDir(crds) {
		c.journal.add(report.Event{Step: "Weft's API", State: report.Done, Text: "no manifests in " + crds + ": not installed"})
		return nil
	}
	return c.journal.step("Weft's API", func() error {
		ctx, cancel := context.WithTimeout(ctx, stepLimit)
		defer cancel()
		if _, err := c.kubectl.run(ctx, "", "apply", "--server-side", "-f", crds); err != nil {
			return err
		}
		if _, err := c.kubectl.run(ctx, "", "wait", "--recursive=false", "--for=condition=Established", "--timeout=120s", "-f", crds); err != nil {
			return err
		}
		for folder, wanted := range map[string]bool{"third-party": c.lab.VPC, "stackube": c.lab.OpenStack != ""} {
			if !wanted {
				continue
			}
			if _, err := c.kubectl.run(ctx, "", "apply", "--server-side", "-f", filepath.Join(c.lab.DeployDir, folder)); err != nil {
				return err
			}
		}
		if err := c.configureNetworks(ctx); err != nil {
			return err
		}
		return c.router.start()
	})
}

// configureNetworks creates the objects that configure the networks of the lab.
func (c cluster) configureNetworks(ctx context.Context) error {
	if c.lab.FlannelStore == plan.StoreEtcd {
		return c.flannel.startLeases(ctx)
	}
	if c.lab.Network.Flannel() {
		if _, err := c.kubectl.run(ctx, flannelConfig(c.lab), "apply", "-f", "-"); err != nil {
			return err
		}
	}
	if c.lab.Network == plan.NetworkFlannel {
		return nil
	}
	_, err := c.kubectl.run(ctx, clusterNetwork(c.lab), "apply", "-f", "-")
	return err
}

// registerNodes makes the Node objects if there is no kubelet.
func (c cluster) registerNodes(ctx context.Context) error {
	if c.lab.Runtime != plan.RuntimeCNI {
		return nil
	}
	client, err := newClient(c.lab)
	if err != nil {
		return err
	}
	var errs []error
	for _, n := range c.lab.AllNodes() {
		var cidrs []string
		if c.lab.Network.Flannel() {
			cidrs = c.lab.PodCIDRs(n)
		}
		errs = append(errs, registerNode(ctx, client, n, cidrs))
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
func restConfig(l plan.Lab) (*rest.Config, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", l.Kubeconfig())
	if err != nil {
		return nil, fmt.Errorf("read the lab's kubeconfig: %w", err)
	}
	cfg.Proxy = nil
	return cfg, nil
}

func newClient(l plan.Lab) (kubernetes.Interface, error) {
	cfg, err := restConfig(l)
	if err != nil {
		return nil, err
	}
	c, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("connect to the lab's API server: %w", err)
	}
	return c, nil
}

func isDir(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.IsDir()
}
