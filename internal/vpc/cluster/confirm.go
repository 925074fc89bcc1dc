package cluster

import (
	"context"
	"fmt"
	"reflect"
	"strings"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
	"weft.dev/weft/internal/vpc/cluster/plan"
	"weft.dev/weft/internal/vpc/nat"
)

const (
	// concurrentReads limits the requests to the API server at a time.
	concurrentReads = 8
	// listedAbove is the number of pods of one namespace above which they are not read one by one. The client makes 200 requests a second.
	listedAbove = 200
	// podsPerPage is the number of pods in one answer to a list, as kubectl requests it.
	podsPerPage = 500
)

// confirm reads from the API server itself before anything is removed: the pods of IP objects to be deleted whose end the watch has not
// reported, and the gateways and the ConfigMaps of workloads to be deleted. It reports whether the cache was behind; then it has passed the
// newer objects to the planner.
func (r *reconciler) confirm(ctx context.Context, p *plan.Plan) (behind bool, err error) {
	if len(p.Confirm) > 0 {
		if behind, err = r.confirmPods(ctx, p.Confirm); err != nil {
			return false, err
		}
	}
	if len(p.DeleteWorkloads) == 0 {
		return behind, nil
	}
	workloads, err := r.confirmWorkloads(ctx, p)
	return behind || workloads, err
}

// confirmPods looks up the pods of IP objects.
func (r *reconciler) confirmPods(ctx context.Context, ips []*kubeovn.IP) (behind bool, err error) {
	left, gone, err := listed(ctx, r.tools.Live, ips)
	if err != nil {
		return false, err
	}
	pods := make([]*corev1.Pod, len(left))
	err = together(ctx, left, func(ctx context.Context, i int, ip *kubeovn.IP) error {
		pod := &corev1.Pod{}
		err := r.tools.Live.Get(ctx, client.ObjectKey{Namespace: ip.Spec.Namespace, Name: ip.Spec.PodName}, pod)
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("confirm that the pod of IP %s is gone: %w", ip.Name, err)
		}
		if err == nil {
			pods[i] = pod
		}
		return nil
	})
	if err != nil {
		return false, err
	}
	for i, ip := range left {
		if pod := pods[i]; pod != nil && plan.Needs(pod, ip) {
			r.knows(pod)
			behind = true
		} else {
			gone = append(gone, ip)
		}
	}
	for _, ip := range gone {
		r.planner.Gone(ip)
	}
	return behind, nil
}

// listed divides IP objects whose pods have to be looked up. If there are many of a namespace, it lists the namespace's pods: gone are those
// whose pods are not in the list, left are all others.
func listed(ctx context.Context, live client.Reader, ips []*kubeovn.IP) (left, gone []*kubeovn.IP, err error) {
	in := map[string][]*kubeovn.IP{}
	for _, ip := range ips {
		in[ip.Spec.Namespace] = append(in[ip.Spec.Namespace], ip)
	}
	var many []string
	for namespace, of := range in {
		if len(of) > listedAbove {
			many = append(many, namespace)
		} else {
			left = append(left, of...)
		}
	}
	pods := make([]map[types.UID]struct{}, len(many))
	err = together(ctx, many, func(ctx context.Context, i int, namespace string) (err error) {
		pods[i], err = podsIn(ctx, live, namespace)
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	for i, namespace := range many {
		for _, ip := range in[namespace] {
			if _, there := pods[i][types.UID(ip.Spec.PodUID)]; there {
				left = append(left, ip)
			} else {
				gone = append(gone, ip)
			}
		}
	}
	return left, gone, nil
}

// podsIn returns the UIDs of the pods in a namespace. All pages of the list are of the state when it began.
func podsIn(ctx context.Context, live client.Reader, namespace string) (map[types.UID]struct{}, error) {
	uids := map[types.UID]struct{}{}
	for token := ""; ; {
		page := &metav1.PartialObjectMetadataList{}
		page.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("PodList"))
		if err := live.List(ctx, page, client.InNamespace(namespace), client.Limit(podsPerPage), client.Continue(token)); err != nil {
			return nil, fmt.Errorf("list the pods of namespace %s: %w", namespace, err)
		}
		for i := range page.Items {
			uids[page.Items[i].UID] = struct{}{}
		}
		if token = page.Continue; token == "" {
			return uids, nil
		}
	}
}

// together calls do for each element of a list, for some concurrently, and returns the first error.
func together[T any](ctx context.Context, list []T, do func(ctx context.Context, i int, element T) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(concurrentReads)
	for i, element := range list {
		group.Go(func() error { return do(ctx, i, element) })
	}
	return group.Wait() //nolint:wrapcheck // do says what failed
}

func (r *reconciler) confirmWorkloads(ctx context.Context, p *plan.Plan) (behind bool, err error) {
	for _, name := range []string{kubeovn.NATGatewayConfigMap, kubeovn.NATConfigMap} {
		object := &corev1.ConfigMap{}
		err := r.tools.Live.Get(ctx, client.ObjectKey{Namespace: kubeovn.ConfigNamespace, Name: name}, object)
		if client.IgnoreNotFound(err) != nil {
			return false, fmt.Errorf("confirm ConfigMap %s/%s: %w", kubeovn.ConfigNamespace, name, err)
		}
		if err == nil && !reflect.DeepEqual(object.Data, r.config[name]) {
			r.knows(object)
			behind = true
		}
	}
	for _, set := range p.DeleteWorkloads {
		object := &kubeovn.VpcNatGateway{}
		name := strings.TrimPrefix(set.Name, nat.PodPrefix)
		err := r.tools.Live.Get(ctx, client.ObjectKey{Name: name}, object)
		if client.IgnoreNotFound(err) != nil {
			return false, fmt.Errorf("confirm that VpcNatGateway %s is gone: %w", name, err)
		}
		if err == nil && !r.planner.Knows(object) {
			r.knows(object)
			behind = true
		}
	}
	return behind, nil
}
