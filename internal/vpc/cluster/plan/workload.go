package plan

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
	"weft.dev/weft/internal/vpc/nat"
)

// specAnnotation holds the digest of a StatefulSet's spec as it was written. The API server fills in defaults, so that specs cannot be
// compared.
const specAnnotation = "weft.dev/spec"

// appLabel is on the gateways' StatefulSets and pods.
const appLabel = "app"

func (c *compiler) hasWorkload(gateway string) bool {
	return slices.ContainsFunc(c.Workloads, func(s appsv1.StatefulSet) bool { return s.Name == nat.WorkloadName(gateway) })
}

// workload plans the StatefulSet of a gateway. One that is there stays as it is while its gateway cannot be compiled.
func (c *compiler) workload(g *nat.Gateway) {
	at := slices.IndexFunc(c.Workloads, func(s appsv1.StatefulSet) bool { return s.Name == nat.WorkloadName(g.Value.Name) })
	wanted := inEffect(g.Object) && c.NAT.Enabled
	if !wanted || g.Problem != (nat.Problem{}) || c.NAT.Image == "" {
		if at >= 0 && !wanted && c.Workloads[at].DeletionTimestamp == nil {
			c.plan.DeleteWorkloads = append(c.plan.DeleteWorkloads, &c.Workloads[at])
		}
		return
	}
	want := Workload(g, c.NAT.Image)
	switch {
	case at < 0:
		c.plan.CreateWorkloads = append(c.plan.CreateWorkloads, want)
	case c.Workloads[at].DeletionTimestamp != nil:
	case c.Workloads[at].Annotations[specAnnotation] != want.Annotations[specAnnotation]:
		changed := c.Workloads[at].DeepCopy()
		changed.Labels, changed.Annotations, changed.Spec.Template = want.Labels, want.Annotations, want.Spec.Template
		changed.Spec.Replicas = want.Spec.Replicas
		c.plan.UpdateWorkloads = append(c.plan.UpdateWorkloads, changed)
	}
}

// strayWorkloads deletes StatefulSets whose gateway is gone.
func (c *compiler) strayWorkloads() {
	for i := range c.Workloads {
		name := strings.TrimPrefix(c.Workloads[i].Name, nat.PodPrefix)
		if c.nat.Gateways[name] == nil && c.Workloads[i].DeletionTimestamp == nil {
			c.plan.DeleteWorkloads = append(c.plan.DeleteWorkloads, &c.Workloads[i])
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
