package flannel

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"golang.org/x/sync/errgroup"
)

const (
	// nodeImages is the number of images in a Node's status: the kubelet's default of nodeStatusMaxImages.
	nodeImages = 50
	// annotationPrefix begins flannel's annotations.
	annotationPrefix = "flannel.alpha.coreos.com/"
)

// MakeNodes makes Node objects as large as those of real clusters.
func MakeNodes(ctx context.Context, client kubernetes.Interface, count int) error {
	const together = 16
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(together)
	for i := range count {
		g.Go(func() error {
			return MakeNode(ctx, client, fmt.Sprintf("peer-%d", i), netip.AddrFrom4([4]byte{198, 18, byte(i / 250), byte(i%250 + 1)}), i)
		})
	}
	return g.Wait()
}

// MakeNode makes node i, with the annotations that its daemon writes.
func MakeNode(ctx context.Context, client kubernetes.Interface, name string, public netip.Addr, i int) error {
	subnet := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 100 + byte(i/250), byte(i % 250), 0}), 24).String()
	data, err := json.Marshal(map[string]any{"VNI": 1, "VtepMAC": fmt.Sprintf("02:00:00:01:%02x:%02x", i/250, i%250)})
	if err != nil {
		return fmt.Errorf("encode backend data: %w", err)
	}
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			"kubernetes.io/arch": "amd64", "kubernetes.io/os": "linux", "kubernetes.io/hostname": name, "topology.kubernetes.io/region": "region-1",
			"topology.kubernetes.io/zone": "region-1a", "node.kubernetes.io/instance-type": "standard-8",
		}, Annotations: map[string]string{
			"node.alpha.kubernetes.io/ttl": "0", "volumes.kubernetes.io/controller-managed-attach-detach": "true",
			annotationPrefix + "public-ip": public.String(), annotationPrefix + "backend-type": "vxlan", annotationPrefix + "backend-data": string(data),
			annotationPrefix + "kube-subnet-manager": "true",
		}},
		Spec: corev1.NodeSpec{PodCIDR: subnet, PodCIDRs: []string{subnet}, ProviderID: "cloud:///region-1a/" + name},
	}
	made, err := client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("make node %s: %w", name, err)
	}
	made.Status = nodeStatus(name, public)
	if _, err := client.CoreV1().Nodes().UpdateStatus(ctx, made, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("set the status of node %s: %w", name, err)
	}
	return nil
}

// nodeStatus is a status as kubelets write it.
func nodeStatus(name string, public netip.Addr) corev1.NodeStatus {
	resources := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("8"), corev1.ResourceMemory: resource.MustParse("32615108Ki"), corev1.ResourcePods: resource.MustParse("110"),
		corev1.ResourceEphemeralStorage: resource.MustParse("102107096Ki"), "hugepages-1Gi": resource.MustParse("0"), "hugepages-2Mi": resource.MustParse("0"),
	}
	status := corev1.NodeStatus{
		Capacity: resources, Allocatable: resources,
		Addresses:       []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: public.String()}, {Type: corev1.NodeHostName, Address: name}},
		DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: 10250}},
		NodeInfo: corev1.NodeSystemInfo{
			MachineID: "1f0b9f0a3c7d4c8f9d3a5e6b7c8d9e0f", SystemUUID: "1f0b9f0a-3c7d-4c8f-9d3a-5e6b7c8d9e0f", BootID: "6d1f2e3a-4b5c-4d6e-8f70-8192a3b4c5d6",
			KernelVersion: "6.12.0-1-amd64", OSImage: "Debian GNU/Linux 13 (trixie)", ContainerRuntimeVersion: "containerd://2.1.4",
			KubeletVersion: "v1.34.1", OperatingSystem: "linux", Architecture: "amd64",
		},
	}
	now := metav1.Now()
	for _, kind := range []corev1.NodeConditionType{corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure, corev1.NodeReady} {
		status.Conditions = append(status.Conditions, corev1.NodeCondition{
			Type: kind, Status: corev1.ConditionFalse, LastHeartbeatTime: now, LastTransitionTime: now, Reason: "KubeletHas" + string(kind),
			Message: "kubelet has sufficient resources available for " + string(kind),
		})
	}
	for i := range nodeImages {
		image := fmt.Sprintf("images.example.org/team-%d/service-with-a-usual-name-%d", i%7, i)
		status.Images = append(status.Images, corev1.ContainerImage{SizeBytes: int64(i+1) << 20, Names: []string{
			image + "@sha256:0f1e2d3c4b5a69788796a5b4c3d2e1f00f1e2d3c4b5a69788796a5b4c3d2e1f0", image + ":v1.2.3",
		}})
	}
	return status
}
