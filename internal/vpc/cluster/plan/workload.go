package plan

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
	"weft.dev/weft/internal/vpc/nat"
)

// specAnnotation holds the digest of a StatefulSet's spec as written. The API server adds defaults, so that specs cannot be compared.
const specAnnotation = "weft.dev/spec"

// appLabel is on the gateways' StatefulSets and pods.
const appLabel = "app"

func (c *compiler) hasWorkload(gateway string) bool {
	return c.objects.workloads[nat.WorkloadName(gateway)] != nil
}

// workload plans the StatefulSet of a gateway. An existing one stays unchanged while its gateway cannot be compiled.
func (c *compiler) workload(g *nat.Gateway) {
	have := c.objects.workloads[nat.WorkloadName(g.Value.Name)]
	wanted := g.Object.DeletionTimestamp == nil && c.objects.config.Enabled
	if !wanted || g.Problem != (nat.Problem{}) || c.objects.config.Image == "" {
		if have != nil && !wanted && have.DeletionTimestamp == nil {
			c.plan.DeleteWorkloads = append(c.plan.DeleteWorkloads, have)
		}
		return
	}
	want := Workload(g, c.objects.config.Image)
	switch {
	case have == nil:
		c.plan.CreateWorkloads = append(c.plan.CreateWorkloads, want)
	case have.DeletionTimestamp != nil:
	case have.Annotations[specAnnotation] != want.Annotations[specAnnotation]:
		changed := have.DeepCopy()
		changed.Labels, changed.Annotations, changed.Spec.Template = want.Labels, want.Annotations, want.Spec.Template
		changed.Spec.Replicas = want.Spec.Replicas
		c.plan.UpdateWorkloads = append(c.plan.UpdateWorkloads, changed)
	}
}

// strayWorkloads deletes StatefulSets whose gateway was deleted.
func (c *compiler) strayWorkloads() {
	for _, name := range slices.Sorted(maps.Keys(c.objects.workloads)) {
		set := c.objects.workloads[name]
		if c.objects.gateways[strings.TrimPrefix(name, nat.PodPrefix)] == nil && set.DeletionTimestamp == nil {
			c.plan.DeleteWorkloads = append(c.plan.DeleteWorkloads, set)
		}
	}
}

// Workload returns the StatefulSet of a gateway. Its container does nothing: the agent programs the pod's network from outside. So it has
// no privilege, token or volume.
func Workload(g *nat.Gateway, image string) *appsv1.StatefulSet {
	name := nat.WorkloadName(g.Value.Name)
	labels := map[string]string{appLabel: nat.LabelValue(g.Value.Name), nat.Label: nat.LabelValue(g.Value.Name)}
	no, yes, user, second := false, true, int64(65534), int64(1)
	set := &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: kubeovn.ConfigNamespace, Name: name, Labels: labels, Annotations: map[string]string{}},
		Spec: appsv1.StatefulSetSpec{
			Replicas: new(int32(1)), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels, Annotations: map[string]string{
					kubeovn.AnnotationNATGateway: g.Value.Name, kubeovn.AnnotationLogicalSwitch: g.Value.Subnet,
					kubeovn.AnnotationIPAddress: g.Value.LanIP.String(),
				}},
				Spec: corev1.PodSpec{
					AutomountServiceAccountToken: &no, EnableServiceLinks: &no, TerminationGracePeriodSeconds: &second,
					NodeSelector: g.Value.Selector, Tolerations: g.Value.Tolerations, Affinity: g.Value.Affinity.DeepCopy(),
					ReadinessGates: []corev1.PodReadinessGate{{ConditionType: nat.Condition}},
					Containers: []corev1.Container{{
						Name: "vpc-nat-gw", Image: image, Command: []string{"sleep", "infinity"}, ImagePullPolicy: corev1.PullIfNotPresent,
						SecurityContext: &corev1.SecurityContext{
							AllowPrivilegeEscalation: &no, ReadOnlyRootFilesystem: &yes, RunAsNonRoot: &yes, RunAsUser: &user,
							Capabilities:   &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
							SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
						},
					}},
				},
			},
		},
	}
	text, err := json.Marshal(set.Spec)
	if err != nil {
		return set // values of these types always encode
	}
	sum := sha256.Sum256(text)
	set.Annotations[specAnnotation] = hex.EncodeToString(sum[:16])
	return set
}
