package rows

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"golang.org/x/sync/errgroup"

	"weft.dev/weft/test/bench/measure"
	"weft.dev/weft/test/bench/stage"
	"weft.dev/weft/test/probe"
)

const (
	memoryPods      = 100 // on the node
	memoryKnown     = 500 // in the cluster
	memoryNamespace = "bench-memory"
	megabyte        = 1e6
)

const (
	resident = "resident"
	heap     = "heap"
)

// memory measures the agent of a node with pods, in a cluster with more pods.
func memory() Group {
	return Group{
		lab:   true,
		Title: fmt.Sprintf("memory of the agent with %d pods in the cluster, %d of them on the node", memoryKnown, memoryPods),
		Rows: []measure.Row{
			{Name: "memory/agent/500-100/resident", Metric: resident, Unit: "MB", Target: measure.AtMost(60)},
			{Name: "memory/agent/500-100/heap", Metric: heap, Unit: "MB in use"},
		},
		run: func(ctx context.Context, b Bench, rows []measure.Row) (results []measure.Result, err error) {
			c, err := b.Stage.Cluster(ctx)
			if err != nil {
				return nil, err
			}
			if err := c.Populate(ctx, memoryPods); err != nil {
				return nil, err
			}
			client, err := c.Client()
			if err != nil {
				return nil, err
			}
			if err := makePodObjects(ctx, client); err != nil {
				return nil, err
			}
			results, err = b.compare(ctx, rows, agentMemory(c), nil)
			if err != nil {
				return nil, err
			}
			return results, dropPodObjects(ctx, client)
		},
	}
}

// makePodObjects makes running pods in the API server: as many on the node itself as are attached there, the others on the other node.
func makePodObjects(ctx context.Context, client kubernetes.Interface) error {
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: memoryNamespace}}
	if _, err := client.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("make the namespace of pods: %w", err)
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(16)
	for i := range memoryKnown {
		g.Go(func() error { return makePodObject(ctx, client, i) })
	}
	return g.Wait()
}

func makePodObject(ctx context.Context, client kubernetes.Interface, i int) error {
	node, address := "n2", fmt.Sprintf("10.129.%d.%d", i>>8, i&0xff)
	if i < memoryPods {
		node = "n1"
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("pod-%d", i), Labels: map[string]string{"app": fmt.Sprintf("app-%d", i/10), "tier": "bench"}},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "main", Image: "bench"}}},
	}
	made, err := client.CoreV1().Pods(memoryNamespace).Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("make pod %s: %w", pod.Name, err)
	}
	made.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: address, PodIPs: []corev1.PodIP{{IP: address}}}
	if _, err := client.CoreV1().Pods(memoryNamespace).UpdateStatus(ctx, made, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("set the status of pod %s: %w", pod.Name, err)
	}
	return nil
}

func dropPodObjects(ctx context.Context, client kubernetes.Interface) error {
	now := int64(0)
	err := client.CoreV1().Pods(memoryNamespace).DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: &now}, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("delete the pods: %w", err)
	}
	return nil
}

func agentMemory(c *stage.Cluster) measure.Side {
	node := c.Ours[0]
	return func(ctx context.Context) (measure.Figures, error) {
		status, err := probe.Program(ctx, c.Cluster, node.Name+"/weft-agent")
		if err != nil {
			return nil, err
		}
		size, err := stage.SettledSize(ctx, status.Pid)
		if err != nil {
			return nil, err
		}
		inUse, err := heapInUse(ctx, node)
		return measure.Figures{resident: size / megabyte, heap: inUse / megabyte}, err
	}
}

// heapInUse returns the heap size at the end of the agent's own profile.
func heapInUse(ctx context.Context, n stage.Node) (float64, error) {
	said, err := probe.AskAgent(ctx, n.Node, "/debug/pprof/heap?debug=1")
	if err != nil {
		return 0, fmt.Errorf("request the heap of the agent of %s: %w", n.Name, err)
	}
	return stage.NumberBehind(said, "# HeapInuse =")
}
