//go:build real

package deploy_test

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"weft.dev/weft/deploy"
)

// An agent may write one condition of the pods of NAT gateways on its own node, and nothing else of pods.
func TestAgentReportsOnItsOwnGatewaysOnly(t *testing.T) {
	ctx := t.Context()
	admin := newClient(t, func(scheme *runtime.Scheme) (client.Client, error) {
		return client.New(server.Config(), client.Options{Scheme: scheme})
	})
	all, err := deploy.VPCObjects()
	must(t, err)
	for _, object := range all {
		if err := admin.Create(ctx, object, client.FieldValidation("Strict")); err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatalf("apply %s %s: %v", object.GetKind(), object.GetName(), err)
		}
	}
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
