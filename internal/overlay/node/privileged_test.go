package node

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestHasPrivileged(t *testing.T) {
	yes, no := true, false
	plain, unsaid := corev1.Container{}, corev1.Container{SecurityContext: &corev1.SecurityContext{}}
	not := corev1.Container{SecurityContext: &corev1.SecurityContext{Privileged: &no}}
	privileged := corev1.Container{SecurityContext: &corev1.SecurityContext{Privileged: &yes}}
	for name, c := range map[string]struct {
		spec corev1.PodSpec
		want bool
	}{
		"none":                {corev1.PodSpec{Containers: []corev1.Container{plain, unsaid, not}}, false},
		"a container":         {corev1.PodSpec{Containers: []corev1.Container{plain, privileged}}, true},
		"an init container":   {corev1.PodSpec{InitContainers: []corev1.Container{not, privileged}, Containers: []corev1.Container{plain}}, true},
		"no container at all": {corev1.PodSpec{}, false},
	} {
		if got := hasPrivileged(&c.spec); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
