package gateways

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
	"weft.dev/weft/internal/vpc/objects"
)

// specAnnotation holds the digest of a StatefulSet's spec as written. The API server adds defaults, so that specs cannot be compared.
const specAnnotation = "weft.dev/spec"

// appLabel is on the gateways' StatefulSets and pods.
const appLabel = "app"

// Workloads are the StatefulSets to create, update and delete.
type Workloads struct{ Create, Update, Delete []*appsv1.StatefulSet }

// plan plans the StatefulSet of a gateway; have is the existing one, or nil. It stays unchanged while its gateway cannot be compiled.
func (w *Workloads) plan(g *nat.Gateway, have *appsv1.StatefulSet, config *objects.NATConfig) {
	wanted := g.Object.DeletionTimestamp == nil && config.Enabled
	if !wanted || g.Problem != (nat.Problem{}) || config.Image == "" {
		if have != nil && !wanted && have.DeletionTimestamp == nil {
			w.Delete = append(w.Delete, have)
		}
		return
	}
	want := Workload(g, config.Image)
	switch {
	case have == nil:
		w.Create = append(w.Create, want)
	case have.DeletionTimestamp != nil:
	case have.Annotations[specAnnotation] != want.Annotations[specAnnotation]:
		changed := have.DeepCopy()
		changed.Labels, changed.Annotations, changed.Spec.Template = want.Labels, want.Annotations, want.Spec.Template
		changed.Spec.Replicas = want.Spec.Replicas
		w.Update = append(w.Update, changed)
	}
}

// strays deletes StatefulSets whose gateway was deleted.
func (w *Workloads) strays(o *store) {
	for _, name := range slices.Sorted(maps.Keys(o.workloads)) {
		set := o.workloads[name]
		if o.gateways[strings.TrimPrefix(name, nat.PodPrefix)] == nil && set.DeletionTimestamp == nil {
			w.Delete = append(w.Delete, set)
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
			// With the other policy, a pod that does not become ready would not be replaced when its image, node selector or lanIp is corrected.
			PodManagementPolicy: appsv1.ParallelPodManagement,
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels, Annotations: map[string]string{
					kubeovn.AnnotationNATGateway: g.Value.Name, kubeovn.AnnotationLogicalSwitch: g.Value.Subnet,
					kubeovn.AnnotationIPAddress: g.Value.LanIP.String(),
				}},
				Spec: corev1.PodSpec{
					AutomountServiceAccountToken: &no, EnableServiceLinks: &no, TerminationGracePeriodSeconds: &second,
					NodeSelector: g.Value.Selector, Tolerations: g.Value.Tolerations, Affinity: &g.Value.Affinity,
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
	set = set.DeepCopy() // an API server's answer is decoded into it, and the gateway is the cache's
	text, err := json.Marshal(set.Spec)
	if err != nil {
		return set // values of these types always encode
	}
	sum := sha256.Sum256(text)
	set.Annotations[specAnnotation] = hex.EncodeToString(sum[:16])
	return set
}
