package node

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"weft.dev/weft/internal/cni"
)

// podTimeout bounds the wait for the API server while a runtime waits for an answer.
const podTimeout = 10 * time.Second

// Pods reads pods from the API server.
type Pods struct{ Clients kubernetes.Interface }

// Privileged reports whether a pod has a privileged container or init container. It reads the pod from the API server, because only egress
// routers need this.
func (p Pods) Privileged(ctx context.Context, args cni.Args) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, podTimeout)
	defer cancel()
	pod, err := p.Clients.CoreV1().Pods(args.PodNamespace).Get(ctx, args.PodName, metav1.GetOptions{})
	if err != nil {
		return false, fmt.Errorf("API server: %w", err)
	}
	uid := string(pod.UID)
	if static := pod.Annotations[corev1.MirrorPodAnnotationKey]; static != "" {
		uid = static // a static pod has another UID at the API server
	}
	if args.PodUID != "" && uid != args.PodUID {
		return false, fmt.Errorf("API server: the pod of that name is another one, %s", uid)
	}
	return hasPrivileged(&pod.Spec), nil
}

func hasPrivileged(spec *corev1.PodSpec) bool {
	return slices.ContainsFunc(slices.Concat(spec.InitContainers, spec.Containers), func(c corev1.Container) bool {
		return c.SecurityContext != nil && c.SecurityContext.Privileged != nil && *c.SecurityContext.Privileged
	})
}
