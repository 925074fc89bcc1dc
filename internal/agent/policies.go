package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"reflect"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"weft.dev/weft/internal/openflow/ofproto"
	"weft.dev/weft/internal/overlay"
	"weft.dev/weft/internal/policy"
	"weft.dev/weft/internal/watermark"
)

// policies tells which NetworkPolicies, pods and namespaces changed. It watches them only while the network is in the mode
// that isolates by them: in a large cluster there are many pods, and each agent hears of all.
type policies struct {
	cache cache.Cache
	log   *slog.Logger
	wake  chan struct{}
	// mark says how far NetworkPolicies are in effect.
	mark *watermark.Mark

	// mu guards what changed.
	mu    sync.Mutex
	dirty policyNames

	// stepping serialises the steps, and guards what follows.
	stepping sync.Mutex
	// synced tell whether each watch has told of everything once; empty while nothing is watched.
	synced []toolscache.InformerSynced
	// known says that the network has been told of everything once.
	known bool
}

// policyNames are objects by name.
type policyNames struct {
	policies, pods map[policy.Key]struct{}
	namespaces     map[string]struct{}
}

func newPolicyNames() policyNames {
	return policyNames{policies: map[policy.Key]struct{}{}, pods: map[policy.Key]struct{}{}, namespaces: map[string]struct{}{}}
}

func newPolicies(store cache.Cache, log *slog.Logger, mark *watermark.Mark) *policies {
	return &policies{cache: store, log: log, wake: make(chan struct{}, 1), mark: mark, dirty: newPolicyNames()}
}

// policyKinds are what is watched for policies.
func policyKinds() []client.Object {
	return []client.Object{&networkingv1.NetworkPolicy{}, &corev1.Pod{}, &corev1.Namespace{}}
}

// policySync bounds how long one try waits for the watches.
const policySync = 10 * time.Second

// enter sees that everything is watched, and waits until all is known once.
func (p *policies) enter(ctx context.Context) error {
	p.stepping.Lock()
	defer p.stepping.Unlock()
	if len(p.synced) == 0 {
		if err := p.watch(ctx); err != nil {
			return err
		}
	}
	waiting, cancel := context.WithTimeout(ctx, policySync)
	defer cancel()
	if !toolscache.WaitForCacheSync(waiting.Done(), p.synced...) {
		return errors.New("waiting for the API server to tell of all NetworkPolicies, pods and namespaces")
	}
	return nil
}

func (p *policies) watch(ctx context.Context) error {
	var synced []toolscache.InformerSynced
	p.mark.Begin()
	for _, kind := range policyKinds() {
		informer, err := p.cache.GetInformer(ctx, kind, cache.BlockUntilSynced(false))
		if err != nil {
			return fmt.Errorf("watching the API server: %w", err)
		}
		registered, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
			AddFunc: p.note, DeleteFunc: p.note,
			UpdateFunc: func(before, after any) {
				if !samePolicyObject(before, after) {
					p.note(after)
				} else {
					p.passed(after)
				}
			},
		})
		if err != nil {
			return fmt.Errorf("watching the API server: %w", err)
		}
		synced = append(synced, registered.HasSynced)
	}
	p.synced = synced
	return nil
}

// leave ends the watches. The network has forgotten what it was told.
func (p *policies) leave(ctx context.Context) error {
	p.stepping.Lock()
	defer p.stepping.Unlock()
	if len(p.synced) == 0 {
		return nil
	}
	p.synced, p.known = nil, false
	p.take()
	p.mark.End()
	var errs []error
	for _, kind := range policyKinds() {
		errs = append(errs, p.cache.RemoveInformer(ctx, kind))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("ending watches of the API server: %w", err)
	}
	return nil
}

// forget has all be told again, should the network come back to this mode: one that is about to leave it forgets.
func (p *policies) forget() {
	p.stepping.Lock()
	defer p.stepping.Unlock()
	p.known = false
}

// samePolicyObject reports whether two states of an object differ in nothing that counts: pods are written often.
func samePolicyObject(before, after any) bool {
	switch a := before.(type) {
	case *corev1.Pod:
		b, ok := after.(*corev1.Pod)
		return ok && reflect.DeepEqual(policyPod(a), policyPod(b))
	case *corev1.Namespace:
		b, ok := after.(*corev1.Namespace)
		return ok && maps.Equal(a.Labels, b.Labels)
	case *networkingv1.NetworkPolicy:
		b, ok := after.(*networkingv1.NetworkPolicy)
		return ok && a.UID == b.UID && reflect.DeepEqual(a.Spec, b.Spec) &&
			a.Annotations[policy.AnnotationEstablished] == b.Annotations[policy.AnnotationEstablished]
	}
	return false
}

func (p *policies) note(object any) {
	p.mu.Lock()
	switch o := lastState(object).(type) {
	case *corev1.Pod:
		p.dirty.pods[policy.Key{Namespace: o.Namespace, Name: o.Name}] = struct{}{}
	case *corev1.Namespace:
		p.dirty.namespaces[o.Name] = struct{}{}
	case *networkingv1.NetworkPolicy:
		p.dirty.policies[policy.Key{Namespace: o.Namespace, Name: o.Name}] = struct{}{}
		at, _ := passageOf(object)
		at.tell(p.mark, true)
	}
	p.mu.Unlock()
	p.signal()
}

// signal has a step taken soon.
func (p *policies) signal() { wakeUp(p.wake) }

// passed takes note of a change in which nothing counts.
func (p *policies) passed(object any) {
	if o, ok := object.(*networkingv1.NetworkPolicy); ok {
		at, _ := passageOf(o)
		at.tell(p.mark, false)
	}
}

func (p *policies) take() policyNames {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mark.Take()
	dirty := p.dirty
	p.dirty = newPolicyNames()
	return dirty
}

func (p *policies) putBack(names policyNames) {
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.Copy(p.dirty.policies, names.policies)
	maps.Copy(p.dirty.pods, names.pods)
	maps.Copy(p.dirty.namespaces, names.namespaces)
}

// step tells the network of what changed since the last, the first time of everything. While nothing is watched it does
// nothing; nor, before the watches have told of everything, unless all is set: then they have.
func (p *policies) step(ctx context.Context, network *overlay.Network, all bool) error {
	p.stepping.Lock()
	defer p.stepping.Unlock()
	if len(p.synced) == 0 || !p.known && !all {
		return nil
	}
	names := p.take()
	change, err := p.change(ctx, names)
	if err != nil {
		p.putBack(names)
		p.mark.Done(err)
		return err
	}
	change.Reset = !p.known
	p.known = true
	err = network.UpdatePolicies(ctx, change)
	p.mark.Done(err)
	return err
}

// change reads what changed.
func (p *policies) change(ctx context.Context, names policyNames) (overlay.PolicyChange, error) {
	change := overlay.PolicyChange{
		Policies: map[policy.Key]*policy.Policy{}, Pods: map[policy.Key]*overlay.PolicyPod{}, Namespaces: map[string]*policy.Namespace{},
		Problems: map[policy.Key]error{},
	}
	for key := range names.policies {
		var object networkingv1.NetworkPolicy
		there, err := p.get(ctx, key, &object)
		if err != nil {
			return change, err
		}
		change.Policies[key] = nil
		if there {
			compiled, wrong := policy.FromNetworkPolicy(&object)
			change.Policies[key], change.Problems[key] = &compiled, wrong
		}
	}
	for key := range names.pods {
		var object corev1.Pod
		there, err := p.get(ctx, key, &object)
		if err != nil {
			return change, err
		}
		change.Pods[key] = nil
		if there {
			pod := policyPod(&object)
			change.Pods[key] = &pod
		}
	}
	for name := range names.namespaces {
		var object corev1.Namespace
		there, err := p.get(ctx, policy.Key{Name: name}, &object)
		if err != nil {
			return change, err
		}
		change.Namespaces[name] = nil
		if there {
			namespace := policy.FromNamespace(&object)
			change.Namespaces[name] = &namespace
		}
	}
	return change, nil
}

func (p *policies) get(ctx context.Context, key policy.Key, into client.Object) (there bool, err error) {
	err = p.cache.Get(ctx, client.ObjectKey{Namespace: key.Namespace, Name: key.Name}, into, client.UnsafeDisableDeepCopy)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("reading %T %s: %w", into, key, err)
	}
	return true, nil
}

// policyPod returns what policies have to know of a pod.
func policyPod(object *corev1.Pod) overlay.PolicyPod {
	pod := overlay.PolicyPod{Pod: policy.FromPod(object), UIDs: []string{string(object.UID)}}
	if mirrored := object.Annotations[corev1.MirrorPodAnnotationKey]; mirrored != "" {
		pod.UIDs = append(pod.UIDs, mirrored)
	}
	return pod
}

// tellPolicyProblems tells what a NetworkPolicy says that is not so on this node.
func (a *agent) tellPolicyProblems(ctx context.Context, key policy.Key, problems []error) {
	const most = 20 // an object may be wrong in thousands of places
	for _, problem := range problems[:min(most, len(problems))] {
		a.opts.Log.Warn("a NetworkPolicy is not realised as it says", "policy", key.String(), "error", problem)
	}
	var object networkingv1.NetworkPolicy
	// It was compiled from what the cache has: nothing is waited for. One that is gone has nobody who would read of it.
	if there, err := a.objects.policies.get(ctx, key, &object); !there || err != nil {
		return
	}
	a.events.Policy(&object, errors.Join(problems[:min(most, len(problems))]...).Error())
}

// stripPolicy keeps of a NetworkPolicy what counts.
func stripPolicy(o *networkingv1.NetworkPolicy) {
	established, says := o.Annotations[policy.AnnotationEstablished]
	o.Annotations = nil
	if says {
		o.Annotations = map[string]string{policy.AnnotationEstablished: established}
	}
}

// stripPod keeps of a pod what policies have to know.
func stripPod(o *corev1.Pod) {
	mirrored, mirrors := o.Annotations[corev1.MirrorPodAnnotationKey]
	o.Annotations, o.OwnerReferences, o.Finalizers = nil, nil, nil
	if mirrors {
		o.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: mirrored}
	}
	named := func(list []corev1.Container) []corev1.Container {
		var out []corev1.Container
		for i := range list {
			if len(list[i].Ports) > 0 {
				out = append(out, corev1.Container{Ports: list[i].Ports})
			}
		}
		return out
	}
	o.Spec = corev1.PodSpec{
		NodeName: o.Spec.NodeName, HostNetwork: o.Spec.HostNetwork, Containers: named(o.Spec.Containers), InitContainers: named(o.Spec.InitContainers),
	}
	o.Status = corev1.PodStatus{Phase: o.Status.Phase, PodIP: o.Status.PodIP, PodIPs: o.Status.PodIPs}
}

// Purge implements overlay.Datapath. The userspace datapath of Open vSwitch 3.1.0 may put new actions to another flow of its
// own than it is told, where its flows overlap (it looks for them by a packet, not by their name), and take it for done: what was
// allowed would stay so for as long as packets come. What is purged is made anew, of what the switch has now.
func (c *connections) Purge(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, forgetTimeout)
	defer cancel()
	paths, _ := filepath.Glob(filepath.Join(c.runDir, "ovs-vswitchd.*.ctl")) // the error is for a bad pattern
	err := errNoSwitch
	for _, path := range paths { // a switch that was killed leaves its socket behind
		if _, failed := ofproto.Command(ctx, path, "revalidator/purge"); failed != nil {
			err = errors.Join(err, failed)
			continue
		}
		return nil
	}
	return err
}

// followPolicies keeps policies in step until ctx ends.
func (a *agent) followPolicies(ctx context.Context, network *overlay.Network) error {
	return a.keepInStep(ctx, a.objects.policies.wake, "NetworkPolicies", func() error { return a.objects.policies.step(ctx, network, false) })
}

// updateNetwork brings the network in step with a view, and what it is told of policies with the view's mode: all of it before
// the mode comes, nothing after it went.
func (a *agent) updateNetwork(ctx context.Context, network *overlay.Network, view overlay.View) error {
	if !view.ByPolicies() {
		a.objects.policies.forget()
		if err := network.Update(ctx, view); err != nil {
			return err
		}
		return a.objects.policies.leave(ctx)
	}
	if err := a.objects.policies.enter(ctx); err != nil {
		return err
	}
	if err := a.objects.policies.step(ctx, network, true); err != nil {
		return err
	}
	if err := network.Update(ctx, view); err != nil {
		return err
	}
	// What was told meanwhile may have been handed over, and not be in effect: this waits for it. If it fails, it is tried again.
	if err := a.objects.policies.step(ctx, network, false); err != nil {
		a.objects.policies.signal()
	}
	return nil
}
