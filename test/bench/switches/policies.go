package switches

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"runtime"
	"runtime/metrics"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/overlay/pipeline"
	"weft.dev/weft/internal/overlay/pipeline/conjunction"
	"weft.dev/weft/internal/policy"
	"weft.dev/weft/internal/policy/policytest"
	"weft.dev/weft/test/bench/measure"
	"weft.dev/weft/test/bench/sending"
	"weft.dev/weft/test/bench/stage"
)

// Metrics of policies.
const (
	fewFlows      = "flows-200"
	manyFlowsOf   = "flows-1000"
	computeWall   = "compute-wall"
	computeMemory = "compute-memory"
)

// Names of the pods that exchange packets, and of their namespace.
const (
	// PolicyNamespace is the namespace of the pods and the policies.
	PolicyNamespace = "bench"
	clientName      = "client"
	serverName      = "server"
)

const megabyte = 1e6

// policyNode is a node's policies. nil has none, and isolates no pod.
type policyNode struct {
	config *pipeline.Config
	index  *policy.Index
	rules  *conjunction.Compiler
	count  int
	all    map[openflow.Key]openflow.Entry
}

func newPolicyNode(config *pipeline.Config) *policyNode {
	n := &policyNode{
		config: config, index: policy.New(""), rules: conjunction.New(config.LocalSubnet), all: map[openflow.Key]openflow.Entry{},
	}
	n.rules.Apply(n.index.SetNamespace(policy.Namespace{Name: PolicyNamespace}), n.index)
	return n
}

// pod adds a pod.
func (n *policyNode) pod(name string, addr netip.Addr, labels map[string]string) {
	n.rules.Apply(n.index.SetPod(policy.Pod{
		Key: policy.Key{Namespace: PolicyNamespace, Name: name}, Labels: labels, Addresses: []netip.Addr{addr},
	}), n.index)
}

// policy allows pods with one label to connect to those with another, at a port.
func (n *policyNode) policy(to, from metav1.LabelSelector, port int32) error {
	n.count++
	p, err := policy.FromNetworkPolicy(&networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: PolicyNamespace, Name: "policy-" + strconv.Itoa(n.count)}, Spec: Allowing(to, from, port),
	})
	if err != nil {
		return err
	}
	n.rules.Apply(n.index.SetPolicy(p), n.index)
	return nil
}

// Allowing returns the spec of a policy that allows pods with one label to connect to those with another, at a UDP port.
func Allowing(to, from metav1.LabelSelector, port int32) networkingv1.NetworkPolicySpec {
	number, udp := intstr.FromInt32(port), corev1.ProtocolUDP
	return networkingv1.NetworkPolicySpec{
		PodSelector: to, PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
		Ingress: []networkingv1.NetworkPolicyIngressRule{{
			From: []networkingv1.NetworkPolicyPeer{{PodSelector: &from}}, Ports: []networkingv1.NetworkPolicyPort{{Port: &number, Protocol: &udp}},
		}},
	}
}

// flows returns the policies' flows.
func (n *policyNode) flows() map[openflow.Key]openflow.Entry {
	if n == nil {
		return nil
	}
	for _, fragment := range n.rules.Changed() {
		maps.Copy(n.all, fragment)
	}
	return n.all
}

// isolation returns a pod's isolation.
func (n *policyNode) isolation(name string) policy.Isolation {
	if n == nil {
		return policy.Isolation{}
	}
	isolation, _ := n.index.Isolation(policy.Key{Namespace: PolicyNamespace, Name: name})
	return isolation
}

// Labelled selects pods with a label.
func Labelled(key, value string) metav1.LabelSelector {
	return metav1.LabelSelector{MatchLabels: map[string]string{key: value}}
}

// policyConfig returns the configuration of a node in the mode with NetworkPolicies, with room for a thousand pods.
func policyConfig() *pipeline.Config {
	config := nodeConfig()
	config.Mode, config.LocalSubnet = pipeline.ModeNetworkPolicy, netip.MustParsePrefix("10.128.0.0/20")
	return config
}

// policyFlows counts the flows of a policy between many pods, on the node that has all of its pods.
func policyFlows() Group {
	return Group{
		Title: "flows of one policy between many pods, all of its own on the node",
		Rows: []measure.Row{
			{Name: "policies/flows/200x200", Metric: fewFlows, Unit: "flows", Target: measure.AtMost(410)},
			{Name: "policies/flows/1000x1000", Metric: manyFlowsOf, Unit: "flows", Target: measure.AtMost(2010)},
		},
		Run: func(ctx context.Context, st *stage.Stage, rows []measure.Row, compare Compare) ([]measure.Result, error) {
			return compare(ctx, rows, func(context.Context) (measure.Figures, error) {
				figures := measure.Figures{}
				for metric, pods := range map[string]int{fewFlows: 200, manyFlowsOf: 1000} {
					count, err := flowsBetween(pods)
					if err != nil {
						return nil, err
					}
					figures[metric] = float64(count)
				}
				return figures, nil
			}, nil)
		},
	}
}

func flowsBetween(pods int) (int, error) {
	n := newPolicyNode(policyConfig())
	servers, clients := netip.MustParseAddr("10.128.0.5"), netip.MustParseAddr("10.132.0.5")
	for i := range pods {
		n.pod("server-"+strconv.Itoa(i), servers, map[string]string{"role": "server"})
		n.pod("client-"+strconv.Itoa(i), clients, map[string]string{"role": "client"})
		servers, clients = servers.Next(), clients.Next()
	}
	if err := n.policy(Labelled("role", "server"), Labelled("role", "client"), servicePort); err != nil {
		return 0, err
	}
	count := len(n.flows())
	if count < 2*pods {
		return 0, fmt.Errorf("%d pods to %d pods need only %d flows: the policy is not complete", pods, pods, count)
	}
	return count, nil
}

// noPolicies returns a node without policies. It, others and isolating are compared in forwarding.
func noPolicies() func() (*policyNode, error) { return policyNodes(nil) }

// flatNetwork is the same node in a flat network.
func flatNetwork() (*policyNode, error) {
	config := policyConfig()
	config.Mode = pipeline.ModeSubnet
	return newPolicyNode(config), nil
}

// others returns a node with 1,000 policies for pods that exchange no packets.
func others() func() (*policyNode, error) {
	const pods = 10
	return policyNodes(func(n *policyNode) error {
		for i := range pods {
			n.pod("other-"+strconv.Itoa(i), netip.AddrFrom4([4]byte{10, 128, 1, byte(10 + i)}), map[string]string{"app": strconv.Itoa(i)})
		}
		for i := range 1000 {
			if err := n.policy(Labelled("app", strconv.Itoa(i%pods)), Labelled("app", strconv.Itoa((i+1)%pods)), int32(10_000+i)); err != nil { //nolint:gosec // small
				return err
			}
		}
		return nil
	})
}

// isolating returns a node with policies that isolate the server; the last one allows the client.
func isolating(count int) func() (*policyNode, error) {
	return policyNodes(func(n *policyNode) error {
		for i := range count - 1 {
			if err := n.policy(Labelled("role", serverName), Labelled("role", clientName), int32(10_000+i)); err != nil { //nolint:gosec // small
				return err
			}
		}
		return n.policy(Labelled("role", serverName), Labelled("role", clientName), forwardPort)
	})
}

func policyNodes(add func(*policyNode) error) func() (*policyNode, error) {
	return func() (*policyNode, error) {
		n := newPolicyNode(policyConfig())
		n.pod(clientName, client(), map[string]string{"role": clientName})
		n.pod(serverName, server(), map[string]string{"role": serverName})
		if add == nil {
			return n, nil
		}
		return n, add(n)
	}
}

// policyForwarding compares the switch's cost of a packet with two sets of policies.
func policyForwarding(name, title string, ours, peer func() (*policyNode, error), target measure.Target) Group {
	return Group{
		Title: "processor time of the switch a packet, pod to pod " + title,
		Rows:  []measure.Row{{Name: "policies/forwarding/" + name, Metric: sending.PacketCPU, Unit: "us of CPU a packet", Target: target}},
		Run: func(ctx context.Context, st *stage.Stage, rows []measure.Row, compare Compare) ([]measure.Result, error) {
			var flows [2]string
			for i, side := range []func() (*policyNode, error){ours, peer} {
				n, err := side()
				if err != nil {
					return nil, err
				}
				flows[i] = text(pipelineOf(n.config, n))
			}
			return comparePaths(ctx, st, compare, rows, flows)
		},
	}
}

// policyCompute computes everything from a cluster's objects, as an agent does when it starts: rules, their addresses, and the isolation
// of pods.
func policyCompute(name, title string, objects func() *policytest.Cluster) Group {
	return Group{
		Title: "computing " + title,
		Rows: []measure.Row{
			{Name: name + "/time", Metric: computeWall, Unit: "s"},
			{Name: name + "/memory", Metric: computeMemory, Unit: "MB of heap at most, the objects included"},
		},
		Run: func(ctx context.Context, st *stage.Stage, rows []measure.Row, compare Compare) ([]measure.Result, error) {
			c := objects()
			return compare(ctx, rows, func(context.Context) (measure.Figures, error) {
				runtime.GC()
				peak := watchHeap()
				began := time.Now()
				x, err := compute(c)
				took := time.Since(began)
				most := peak()
				runtime.KeepAlive(x)
				return measure.Figures{computeWall: took.Seconds(), computeMemory: most / megabyte}, err
			}, nil)
		},
	}
}

// watchHeap records the maximum size of the heap until its result is called.
func watchHeap() func() float64 {
	const often = 20 * time.Millisecond
	stop, done := make(chan struct{}), make(chan uint64)
	go func() {
		sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
		ticker := time.NewTicker(often)
		defer ticker.Stop()
		var most uint64
		for {
			metrics.Read(sample)
			most = max(most, sample[0].Value.Uint64())
			select {
			case <-stop:
				done <- most
				return
			case <-ticker.C:
			}
		}
	}()
	return func() float64 {
		close(stop)
		return float64(<-done)
	}
}

// compute builds the index from the objects, and reads everything that an engine would program.
func compute(c *policytest.Cluster) (*policy.Index, error) {
	x, err := c.Index("")
	if err != nil {
		return nil, err //nolint:wrapcheck // it names the policy
	}
	if rules, _, isolated := c.Read(x); isolated != len(c.Pods) || rules == 0 {
		return nil, fmt.Errorf("%d rules, and %d of %d pods are isolated: the policies are not complete", rules, isolated, len(c.Pods))
	}
	return x, nil
}

// comparePaths compares the cost of a packet with two sets of flows.
func comparePaths(ctx context.Context, st *stage.Stage, compare Compare, rows []measure.Row, flows [2]string) (results []measure.Result, err error) {
	paths := make([]*path, 0, 2)
	defer func() {
		for _, p := range paths {
			err = errors.Join(err, p.close())
		}
	}()
	for _, side := range []struct{ name, flows string }{{"ours", flows[0]}, {"peer", flows[1]}} {
		p, err := openPath(ctx, st, side.name, side.flows, server())
		if err != nil {
			return nil, err
		}
		paths = append(paths, p)
	}
	return compareSending(ctx, compare, rows, &paths[0].Path, &paths[1].Path)
}
