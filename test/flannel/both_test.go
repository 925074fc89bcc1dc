//go:build lab

package flannel

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"weft.dev/weft/internal/placement"
	"weft.dev/weft/internal/testwait"
	"weft.dev/weft/lab"
	"weft.dev/weft/lab/plan"
	"weft.dev/weft/test/labs"
	"weft.dev/weft/test/probe"
	"weft.dev/weft/test/traffic"
)

// TestBothNetworks: the overlay and flannel serve one cluster. A pod is where its annotation says, else its namespace's, else on the default
// network. Pods of both networks reach each other on one node and across nodes, and NetworkPolicies hold for both. flannel's chains, which all
// packets cross that a node forwards, leave the overlay's egress IPs as they are.
func TestBothNetworks(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	c := labs.Up(ctx, t, lab.Config{WeftBin: weftBin, Name: "flanboth", Nodes: 2, Runtime: plan.RuntimeCNI, Network: plan.NetworkBoth, PluginName: "redhat/openshift-ovs-networkpolicy"})
	k, err := c.Client()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := k.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "leaving"}}, metav1.CreateOptions{}); err != nil {
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
	leaveByEgressIP(ctx, t, c)
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

// leaveByEgressIP gives a namespace an egress IP on n2, and waits until requests of its pods on both nodes have it outside.
func leaveByEgressIP(ctx context.Context, t *testing.T, c *lab.Cluster) {
	t.Helper()
	const namespace, address, port = "leaving", "172.31.0.100", 7792
	server, err := traffic.NewSourceServer(c.Outside.Netns, "outside", netip.AddrPortFrom(netip.IPv4Unspecified(), port))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Close() }()
	for resource, name := range map[string]string{"netnamespaces": namespace, "hostsubnets": "n2"} {
		objects, err := probe.Objects(c, "network.openshift.io", resource)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := probe.Await(ctx, time.Minute, "egress IP of "+name, func(ctx context.Context) error {
			_, err := objects.Patch(ctx, name, types.MergePatchType, []byte(`{"egressIPs":["`+address+`"]}`), metav1.PatchOptions{})
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	for _, node := range []string{"n1", "n2"} {
		pod, err := probe.AddPod(ctx, c, lab.PodSpec{Node: node, Namespace: namespace, Name: "leaving-" + node})
		if err != nil {
			t.Fatal(err)
		}
		testwait.Eventually(t, pod.Name+" leaves by the egress IP", func() error {
			answer, err := traffic.Ask(ctx, pod.Netns, "tcp", netip.AddrPortFrom(c.Outside.IP, port))
			if err == nil && answer.Source.String() != address {
				err = fmt.Errorf("%s", answer)
			}
			return err
		})
		if err := c.DelPod(ctx, pod); err != nil {
			t.Error(err)
		}
	}
}
