package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/neutron/pipeline"
	"weft.dev/weft/internal/reconcile"
)

// follow compiles all flows anew whenever an object changes that they depend on, until ctx ends.
func (n *Network) follow(ctx context.Context) {
	for {
		var retry <-chan time.Time
		if err := n.compileAll(ctx); err != nil && ctx.Err() == nil {
			n.deps.Log.Warn("flows of Neutron networks", "error", err)
			retry = time.After(lastRetry)
		}
		select {
		case <-ctx.Done():
			return
		case <-n.wake:
		case <-retry:
		}
	}
}

func (n *Network) wakeUp() {
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// compileAll hands over the flows of all networks that have pods here, without waiting for the switch.
func (n *Network) compileAll(ctx context.Context) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	all, err := compileHost(ctx, n.deps.Objects)
	if err != nil {
		return err
	}
	scopes := map[scope]bool{}
	for _, rec := range n.attached {
		if d, err := detailsOf(&rec); err == nil {
			scopes[scopeOf(&rec, &d)] = true
		}
	}
	var errs []error
	for s := range scopes {
		made, _, err := n.compile(ctx, s)
		errs = append(errs, err)
		all.merge(made)
	}
	for s := range n.served {
		if !scopes[s] {
			all[s.owner()] = nil
			delete(n.served, s)
		}
	}
	n.flows().Loop.Set(all)
	return errors.Join(errs...)
}

// compile returns the flows of a network, and its judge. The caller holds mu. The objects are in the cache: nothing is waited for.
func (n *Network) compile(ctx context.Context, s scope) (fragments, *judge, error) {
	w := world{scope: s, node: n.node.Name, subnet: n.ports.subnet(s)}
	for _, rec := range n.attached {
		d, err := detailsOf(&rec)
		if err != nil || scopeOf(&rec, &d) != s {
			continue
		}
		w.attached = append(w.attached, rec)
		for _, p := range rec.Addresses {
			w.subnet.prefixes = append(w.subnet.prefixes, p.Masked())
		}
	}
	if err := read(ctx, n.deps.Objects, &w); err != nil {
		return nil, nil, err
	}
	made, problem := w.compile()
	j, _ := w.judge() // the problem is the same
	n.served[s] = true
	return made, j, problem
}

// open notes an attachment and hands over the flows of its network. It returns once they are in effect, and waits until the labels of the
// pod are known if its namespace has policies.
func (n *Network) open(ctx context.Context, rec *attach.Record, d *details) error {
	waiting, cancel := context.WithTimeout(ctx, labelsPatience)
	defer cancel()
	for {
		n.mu.Lock()
		n.attached[rec.Key()] = *rec
		changed := n.changed
		made, j, err := n.compile(ctx, scopeOf(rec, d))
		if made != nil {
			n.flows().Loop.Set(made)
		}
		n.mu.Unlock()
		switch {
		case made == nil:
			return err
		case j == nil || j.knows(rec):
			return n.settled(ctx, ownerOf(rec), scopeOf(rec, d).owner())
		}
		select {
		case <-changed:
		case <-waiting.Done():
			return cni.Errorf(cni.CodeTryAgainLater, "pod %s/%s (UID %s) has not been received from the API server: without its labels no NetworkPolicy can be applied: try again later",
				rec.PodNamespace, rec.PodName, rec.PodUID)
		}
	}
}

// settled waits until what was handed over is programmed, and returns what keeps these owners from it.
func (n *Network) settled(ctx context.Context, owners ...reconcile.Owner) error {
	if err := n.flows().Loop.Apply(ctx, nil); err != nil {
		return fmt.Errorf("flows of %s: %w", pipeline.Bridge, err)
	}
	for _, o := range owners {
		if err := n.flows().Loop.Failure(o); err != nil {
			return fmt.Errorf("flows of %s: %w", pipeline.Bridge, err)
		}
	}
	return nil
}

// objectChanged has flows compiled anew.
func (n *Network) objectChanged(object any) {
	if _, is := object.(*corev1.Pod); is {
		n.mu.Lock()
		close(n.changed)
		n.changed = make(chan struct{})
		n.mu.Unlock()
	}
	n.wakeUp()
}

// stripPod keeps of a pod what policies depend on.
func stripPod(object any) (any, error) {
	pod, is := object.(*corev1.Pod)
	if !is {
		return object, nil
	}
	kept := &corev1.Pod{TypeMeta: pod.TypeMeta, ObjectMeta: pod.ObjectMeta}
	kept.ManagedFields, kept.OwnerReferences, kept.Annotations = nil, nil, nil
	if mirrored, mirrors := pod.Annotations[corev1.MirrorPodAnnotationKey]; mirrors {
		kept.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: mirrored}
	}
	ports := func(list []corev1.Container) (out []corev1.Container) {
		for i := range list {
			if len(list[i].Ports) > 0 {
				out = append(out, corev1.Container{Ports: list[i].Ports})
			}
		}
		return out
	}
	kept.Spec = corev1.PodSpec{
		NodeName: pod.Spec.NodeName, HostNetwork: pod.Spec.HostNetwork,
		Containers: ports(pod.Spec.Containers), InitContainers: ports(pod.Spec.InitContainers),
	}
	kept.Status = corev1.PodStatus{Phase: pod.Status.Phase, PodIP: pod.Status.PodIP, PodIPs: pod.Status.PodIPs}
	return kept, nil
}
