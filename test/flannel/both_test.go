//go:build lab

package flannel

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"weft.dev/weft/internal/placement"
	"weft.dev/weft/internal/testwait"
	"weft.dev/weft/lab"
	"weft.dev/weft/lab/plan"
	"weft.dev/weft/test/labs"
	"weft.dev/weft/test/probe"
)

// TestBothNetworks: the overlay and flannel serve one cluster. A pod is where its annotation says, else its namespace's, else on the default
// network. Pods of both networks reach each other on one node and across nodes, and NetworkPolicies hold for both.
func TestBothNetworks(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	c := labs.Up(ctx, t, lab.Config{WeftBin: weftBin, Name: "flanboth", Nodes: 2, Runtime: plan.RuntimeCNI, Network: plan.NetworkBoth, PluginName: "redhat/openshift-ovs-networkpolicy"})
	k, err := c.Client()
	if err != nil {
		t.Fatal(err)
	}
	onFlannel := map[string]string{placement.AnnotationNetwork: "flannel"}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "onflannel", Annotations: onFlannel}}
	if _, err := k.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	flannel := plan.New(c.Config).FlannelCIDR
	var pods []*lab.Pod
	add := func(spec lab.PodSpec, want bool) *lab.Pod {
		t.Helper()
		pod, err := probe.AddPod(ctx, c, spec) // flannel may have no lease yet
		if err != nil {
			t.Fatal(err)
		}
		if len(pod.IPs) != 1 || flannel.Contains(pod.IPs[0]) != want {
			t.Errorf("pod %s/%s has addresses %s; on flannel: want %t", pod.Namespace, pod.Name, pod.IPs, want)
		}
		pods = append(pods, pod)
		return pod
	}
	for _, node := range []string{"n1", "n2"} {
		add(lab.PodSpec{Node: node, Namespace: "default", Name: "usual-" + node}, false)
		add(lab.PodSpec{Node: node, Namespace: "default", Name: "annotated-" + node, Annotations: onFlannel}, true)
		add(lab.PodSpec{Node: node, Namespace: "onflannel", Name: "namespace-" + node}, true)
	}
	add(lab.PodSpec{Node: "n1", Namespace: "onflannel", Name: "back", Annotations: map[string]string{placement.AnnotationNetwork: "overlay"}}, false)
	for _, from := range pods {
		for _, to := range pods {
			testwait.Eventually(t, from.Name+" reaches "+to.Name, func() error { return ping(ctx, from, to) })
		}
	}
	closed := &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "deny"},
		Spec:       networkingv1.NetworkPolicySpec{PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}},
	}
	if _, err := k.NetworkingV1().NetworkPolicies("default").Create(ctx, closed, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	var asking errgroup.Group // several at once: an unanswered request takes a second
	asking.SetLimit(8)
	for _, from := range pods {
		for _, to := range pods {
			if from == to {
				continue
			}
			passes := to.Namespace != "default"
			asking.Go(func() error {
				what := fmt.Sprintf("with a policy for default, %s reaches %s: %t", from.Name, to.Name, passes)
				_, err := probe.Await(ctx, time.Minute, what, func(ctx context.Context) error {
					if err := ping(ctx, from, to); (err == nil) != passes {
						return errors.Join(errors.New("not so"), err)
					}
					return nil
				})
				return err
			})
		}
	}
	if err := asking.Wait(); err != nil {
		t.Fatal(err)
	}
	for _, pod := range pods {
		if err := c.DelPod(ctx, pod); err != nil {
			t.Error(err)
		}
	}
	if err := c.Crashed(ctx); err != nil {
		t.Error(err)
	}
}
