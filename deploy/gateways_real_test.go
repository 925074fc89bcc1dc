//go:build real

package deploy_test

import (
	"context"
	"net/netip"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
	"weft.dev/weft/deploy"
	"weft.dev/weft/internal/vpc/cluster/plan/gateways"
	"weft.dev/weft/internal/vpc/nat"
	"weft.dev/weft/internal/vpc/objects"
)

// An agent may write one condition of the pods of NAT gateways on its own node, and nothing else of pods.
func TestAgentReportsOnItsOwnGatewaysOnly(t *testing.T) {
	ctx := t.Context()
	admin := newClient(t, func(scheme *runtime.Scheme) (client.Client, error) {
		return client.New(server.Config(), client.Options{Scheme: scheme})
	})
	all, err := deploy.VPCObjects()
	must(t, err)
	apply(t, admin, all)
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "default"}}
	if err := admin.Create(ctx, account); !apierrors.IsAlreadyExists(err) {
		must(t, err)
	}
	for name, node := range map[string]string{"vpc-nat-gw-mine-0": "gateways", "vpc-nat-gw-other-0": "elsewhere", "etcd": "gateways"} {
		must(t, admin.Create(ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: name},
			Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "i"}}},
		}))
	}
	agent := agentOn(t, "gateways")
	patch := func(pod, change string) error {
		object := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: pod}}
		return agent.Status().Patch(ctx, object, client.RawPatch("application/strategic-merge-patch+json", []byte(change)))
	}
	report := func(pod, status string) error {
		return patch(pod, `{"status": `+status+`}`)
	}
	const programmed = `{"conditions": [{"type": "weft.dev/programmed", "status": "True", "reason": "Programmed", "message": "hash"}]}`
	waiting, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	// The rights and the policy take effect some time after they were written.
	for {
		mine, other := report("vpc-nat-gw-mine-0", programmed), report("vpc-nat-gw-other-0", programmed)
		if mine == nil && apierrors.IsForbidden(other) {
			break
		}
		select {
		case <-waiting.Done():
			t.Fatalf("the own gateway's pod: %v; another node's: %v", mine, other)
		case <-time.After(100 * time.Millisecond):
		}
	}
	for what, err := range map[string]error{
		"another pod of the node": report("etcd", programmed),
		"another condition":       report("vpc-nat-gw-mine-0", `{"conditions": [{"type": "Ready", "status": "True"}]}`),
		"another field":           report("vpc-nat-gw-mine-0", `{"phase": "Running"}`),
		"a label":                 patch("vpc-nat-gw-mine-0", `{"metadata": {"labels": {"k8s-app": "kube-dns"}}}`),
		"a finalizer":             patch("vpc-nat-gw-mine-0", `{"metadata": {"finalizers": ["example.com/kept"]}}`),
	} {
		if !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v, want it forbidden", what, err)
		}
	}
}

// The controller may write the workloads of NAT gateways, as it compiles them, and no other StatefulSet of kube-system.
func TestControllerWritesGatewaysOnly(t *testing.T) {
	ctx := t.Context()
	admin := newClient(t, func(scheme *runtime.Scheme) (client.Client, error) {
		return client.New(server.Config(), client.Options{Scheme: scheme})
	})
	all, err := deploy.VPCObjects()
	must(t, err)
	apply(t, admin, all)
	controller := newClient(t, func(scheme *runtime.Scheme) (client.Client, error) {
		return client.New(server.ConfigAs("weft", "weft-controller"), client.Options{Scheme: scheme})
	})
	workload := func(change func(*appsv1.StatefulSet)) *appsv1.StatefulSet {
		set := gateways.Workload(&nat.Gateway{Value: objects.Gateway{
			Meta: objects.Meta{Kind: "VpcNatGateway", Name: "gw1", UID: "uid"}, Subnet: "net1", LanIP: netip.MustParseAddr("10.0.1.254"),
			Selector: map[string]string{"kubernetes.io/os": "linux"}, Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		}}, "docker.io/kubeovn/vpc-nat-gateway:v1.12.4")
		if change != nil {
			change(set)
		}
		return set
	}
	pod := func(change func(*corev1.PodSpec)) *appsv1.StatefulSet {
		return workload(func(set *appsv1.StatefulSet) { change(&set.Spec.Template.Spec) })
	}
	container := func(change func(*corev1.Container)) *appsv1.StatefulSet {
		return pod(func(spec *corev1.PodSpec) { change(&spec.Containers[0]) })
	}
	other := workload(func(set *appsv1.StatefulSet) { set.Name = "etcd" })
	waiting, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for { // the rights and the policy take effect some time after they were written
		denied, created := controller.Create(ctx, other.DeepCopy()), controller.Create(ctx, workload(nil))
		if apierrors.IsForbidden(denied) && (created == nil || apierrors.IsAlreadyExists(created)) {
			break
		}
		if denied == nil {
			must(t, admin.Delete(ctx, other.DeepCopy()))
		}
		select {
		case <-waiting.Done():
			t.Fatalf("another StatefulSet: %v; a gateway's: %v", denied, created)
		case <-time.After(100 * time.Millisecond):
		}
	}
	for what, set := range map[string]*appsv1.StatefulSet{
		"two pods": workload(func(set *appsv1.StatefulSet) { *set.Spec.Replicas = 2 }),
		"a label of another application": workload(func(set *appsv1.StatefulSet) {
			set.Labels["k8s-app"], set.Spec.Template.Labels["k8s-app"] = "kube-dns", "kube-dns"
		}),
		"other labels than its pod": workload(func(set *appsv1.StatefulSet) {
			set.Labels = map[string]string{"app": "gw2", nat.Label: "gw2"}
		}),
		"another value of app": workload(func(set *appsv1.StatefulSet) { // also in the selector
			set.Labels["app"] = "kube-dns"
		}),
		"no Subnet": workload(func(set *appsv1.StatefulSet) { delete(set.Spec.Template.Annotations, kubeovn.AnnotationLogicalSwitch) }),
		"another annotation": workload(func(set *appsv1.StatefulSet) {
			set.Spec.Template.Annotations["k8s.v1.cni.cncf.io/networks"] = "kube-system/host"
		}),
		"no label": workload(func(set *appsv1.StatefulSet) { set.Labels = nil }),
		"a volume of the host": pod(func(s *corev1.PodSpec) {
			s.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}}}
		}),
		"the host's network":   pod(func(s *corev1.PodSpec) { s.HostNetwork = true }),
		"the host's processes": pod(func(s *corev1.PodSpec) { s.HostPID = true }),
		"another account":      pod(func(s *corev1.PodSpec) { s.ServiceAccountName = "admin" }),
		"a token":              pod(func(s *corev1.PodSpec) { s.AutomountServiceAccountToken = nil }),
		"a node":               pod(func(s *corev1.PodSpec) { s.NodeName = "node1" }),
		"a priority class":     pod(func(s *corev1.PodSpec) { s.PriorityClassName = "system-node-critical" }),
		"a group":              pod(func(s *corev1.PodSpec) { s.SecurityContext = &corev1.PodSecurityContext{FSGroup: new(int64)} }),
		"an init container":    pod(func(s *corev1.PodSpec) { s.InitContainers = []corev1.Container{{Name: "i", Image: "i"}} }),
		"a second container":   pod(func(s *corev1.PodSpec) { s.Containers = append(s.Containers, corev1.Container{Name: "i", Image: "i"}) }),
		"another command":      container(func(c *corev1.Container) { c.Command = []string{"sh"} }),
		"arguments":            container(func(c *corev1.Container) { c.Args = []string{"1"} }),
		"a port of the host":   container(func(c *corev1.Container) { c.Ports = []corev1.ContainerPort{{ContainerPort: 1, HostPort: 1}} }),
		"a privilege": container(func(c *corev1.Container) {
			c.SecurityContext.Privileged, c.SecurityContext.AllowPrivilegeEscalation = new(bool), nil
		}),
		"a capability":               container(func(c *corev1.Container) { c.SecurityContext.Capabilities.Add = []corev1.Capability{"NET_ADMIN"} }),
		"no seccomp profile":         container(func(c *corev1.Container) { c.SecurityContext.SeccompProfile = nil }),
		"a writable root":            container(func(c *corev1.Container) { c.SecurityContext.ReadOnlyRootFilesystem = nil }),
		"no security context at all": container(func(c *corev1.Container) { c.SecurityContext = nil }),
	} {
		set.Name = "vpc-nat-gw-other"
		if err := controller.Create(ctx, set); !apierrors.IsForbidden(err) {
			t.Errorf("a gateway with %s: %v, want it forbidden", what, err)
		}
	}
	must(t, admin.Create(ctx, other))
	if err := controller.Delete(ctx, other); !apierrors.IsForbidden(err) {
		t.Errorf("deletion of another StatefulSet: %v, want it forbidden", err)
	}
	set := workload(nil)
	must(t, controller.Get(ctx, client.ObjectKeyFromObject(set), set))
	set.Spec.Template.Spec.Containers[0].Image = "another"
	must(t, controller.Update(ctx, set))
	set.Spec.Template.Spec.HostNetwork = true
	if err := controller.Update(ctx, set); !apierrors.IsForbidden(err) {
		t.Errorf("an update to the host's network: %v, want it forbidden", err)
	}
	must(t, controller.Delete(ctx, set))
	must(t, admin.Delete(ctx, other))
}
