package flannel

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"golang.org/x/sync/errgroup"

	"weft.dev/weft/lab"
	"weft.dev/weft/test/probe"
)

// The label of the pods of PolicyCost's policy, with its values for the pods that the policy selects and for those that it allows.
const (
	CostLabel = "cost"
	CostTo    = "to"
	CostFrom  = "from"
)

const (
	// costSide is the number of pods on each side of the policy.
	costSide = 200
	// policyTable is the nftables table of policies, of family inet.
	policyTable = "weft-flannel-pods"
)

// Policies counts the policies that a node has programmed, by their chains of ingress.
func Policies(ctx context.Context, n lab.Node) (int, error) {
	chains, err := probe.Run(ctx, n.Enter("nft", "list", "chains", "inet"))
	return strings.Count(chains, "chain policy-ingress-"), err
}

// PolicyCost counts the rules and elements that one policy between many pods adds or changes on a node without other policies. spec is the
// policy's. The node's pods and the policy are removed afterwards.
func PolicyCost(ctx context.Context, c *lab.Cluster, n lab.Node, namespace string, spec networkingv1.NetworkPolicySpec) (added float64, err error) {
	client, err := c.Client()
	if err != nil {
		return 0, err
	}
	pods, err := costPods(ctx, c, n, namespace)
	defer func() {
		for _, p := range pods {
			if p != nil {
				err = errors.Join(err, c.DelPod(context.WithoutCancel(ctx), p))
			}
		}
	}()
	if err != nil {
		return 0, err
	}
	before, err := contentOf(ctx, n)
	if err != nil {
		return 0, err
	}
	policies := client.NetworkingV1().NetworkPolicies(namespace)
	object := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: CostLabel}, Spec: spec}
	if _, err := policies.Create(ctx, object, metav1.CreateOptions{}); err != nil {
		return 0, fmt.Errorf("make policy %s: %w", CostLabel, err)
	}
	_, err = probe.Await(ctx, probe.Patience, "the policy with its pods", func(ctx context.Context) error {
		after, err := contentOf(ctx, n)
		added = 0
		for item, count := range after {
			added += float64(max(0, count-before[item]))
		}
		switch {
		case err != nil:
		case added < 2*costSide: // the verdicts of one side, the addresses of the other
			err = fmt.Errorf("%v rules and elements", added)
		case revoking(after):
			err = errRevoking
		}
		return err
	})
	if err != nil {
		return added, err
	}
	if err := policies.Delete(ctx, CostLabel, metav1.DeleteOptions{}); err != nil {
		return added, fmt.Errorf("delete policy %s: %w", CostLabel, err)
	}
	_, err = probe.Await(ctx, probe.Patience, "the policy's removal", func(ctx context.Context) error {
		have, err := Policies(ctx, n)
		if err == nil && have != 0 {
			err = fmt.Errorf("%d policies", have)
		}
		return err
	})
	return added, err
}

// costPods starts the pods of the node, which the policy selects, and makes the objects of those that it allows.
func costPods(ctx context.Context, c *lab.Cluster, n lab.Node, namespace string) ([]*lab.Pod, error) {
	g, limited := errgroup.WithContext(ctx)
	const together = 16
	g.SetLimit(together)
	pods := make([]*lab.Pod, costSide)
	address, err := beyondPods(ctx, c, "n2")
	if err != nil {
		return pods, err
	}
	for i := range costSide {
		address = address.Next()
		at := address
		g.Go(func() (err error) {
			spec := lab.PodSpec{Node: n.Name, Namespace: namespace, Name: "to-" + strconv.Itoa(i), Labels: map[string]string{CostLabel: CostTo}}
			pods[i], err = probe.AddPod(limited, c, spec)
			return err
		})
		g.Go(func() error { return elsewhere(limited, c, namespace, i, at) })
	}
	return pods, g.Wait()
}

// beyondPods returns an address of a node's range after those of the pods that run there: policies count no address of a pod that is not of its
// node's range.
func beyondPods(ctx context.Context, c *lab.Cluster, name string) (netip.Addr, error) {
	const running = 32
	client, err := c.Client()
	if err != nil {
		return netip.Addr{}, err
	}
	node, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return netip.Addr{}, err
	}
	subnet, err := netip.ParsePrefix(node.Spec.PodCIDR)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("node %s: spec.podCIDR: %w", name, err)
	}
	address := subnet.Addr()
	for range running {
		address = address.Next()
	}
	return address, nil
}

// elsewhere makes the object of a running pod of another node.
func elsewhere(ctx context.Context, c *lab.Cluster, namespace string, i int, address netip.Addr) error {
	client, err := c.Client()
	if err != nil {
		return err
	}
	name := "from-" + strconv.Itoa(i)
	if _, err := c.MakeObject(ctx, lab.PodSpec{Node: "n2", Namespace: namespace, Name: name, Labels: map[string]string{CostLabel: CostFrom}}); err != nil {
		return err
	}
	pods := client.CoreV1().Pods(namespace)
	pod, err := pods.Get(ctx, name, metav1.GetOptions{})
	if err == nil {
		pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: address.String(), PodIPs: []corev1.PodIP{{IP: address.String()}}}
		_, err = pods.UpdateStatus(ctx, pod, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("set the status of pod %s: %w", name, err)
	}
	return nil
}

// errRevoking says that rules are in the table that go when revoked connections have been removed from conntrack.
var errRevoking = errors.New("connections are being removed from conntrack")

// revoking reports whether a rule looks at the direction of connections: until revoked connections have been removed, only replies pass.
func revoking(content map[string]int) bool {
	for item := range content {
		if strings.Contains(item, `"direction"`) {
			return true
		}
	}
	return false
}

// contentOf returns the rules and elements of a node's table of policies, with their number.
func contentOf(ctx context.Context, n lab.Node) (map[string]int, error) {
	text, err := probe.Run(ctx, n.Enter("nft", "-j", "-s", "list", "table", "inet", policyTable))
	if err != nil {
		return nil, err
	}
	type set struct {
		Name string            `json:"name"`
		Elem []json.RawMessage `json:"elem"`
	}
	var listing struct {
		Items []struct {
			Set, Map *set
			Rule     *struct {
				Chain string          `json:"chain"`
				Expr  json.RawMessage `json:"expr"`
			}
		} `json:"nftables"`
	}
	if err := json.Unmarshal([]byte(text), &listing); err != nil {
		return nil, fmt.Errorf("table inet %s as nft lists it: %w", policyTable, err)
	}
	content := map[string]int{}
	for _, item := range listing.Items {
		if item.Rule != nil {
			content[item.Rule.Chain+" "+string(item.Rule.Expr)]++
		}
		for _, s := range []*set{item.Set, item.Map} {
			if s == nil {
				continue
			}
			for _, element := range s.Elem {
				content[s.Name+" "+string(element)]++
			}
		}
	}
	return content, nil
}
