// Package follow follows the objects that NetworkPolicies depend on, by one network's watches. It hands the network first all objects,
// and then the changes. It watches only while the network isolates by policies: a large cluster has many pods, and each agent receives
// all of them.
package follow

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"weft.dev/weft/internal/informer"
	"weft.dev/weft/internal/policy"
	"weft.dev/weft/internal/policy/enforcer"
	"weft.dev/weft/internal/steps"
)

// Mark records how far NetworkPolicies are in effect.
type Mark interface {
	// Begin and End are called when the watches begin and end.
	Begin()
	End()
	// Saw is called for each notification of a watch; concerns says that the next Take includes the change.
	Saw(notified any, concerns bool)
	// Take is called when a step takes all changes so far. Done is called when these are in effect, or failed.
	Take()
	Done(err error)
}

// noMark records nothing.
type noMark struct{}

// Begin implements Mark.
func (noMark) Begin() {}

// End implements Mark.
func (noMark) End() {}

// Saw implements Mark.
func (noMark) Saw(any, bool) {}

// Take implements Mark.
func (noMark) Take() {}

// Done implements Mark.
func (noMark) Done(error) {}

// Follower follows NetworkPolicies, pods and namespaces. New returns one. Step may be called concurrently; Enter, Forget and Leave have one
// caller.
type Follower struct {
	cache cache.Cache
	wake  chan struct{}
	mark  Mark
	// synced report whether each watch has all objects; empty while nothing is watched. forgotten says that Forget was called since Enter. Both
	// belong to the caller of Enter.
	synced    []toolscache.DoneChecker
	forgotten bool
	// runs makes one step at a time.
	runs steps.Runs

	// mu guards the fields below. It is not held during I/O.
	mu    sync.Mutex
	dirty policyNames
	// listed says that the watches have all objects and that the network wants them. Until then, steps do nothing.
	listed bool
	// known says that the network has got all objects, or gets them by the step in progress.
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

// New returns a Follower of the objects in a cache. It watches nothing before Enter. mark may be nil.
func New(store cache.Cache, mark Mark) *Follower {
	if mark == nil {
		mark = noMark{}
	}
	return &Follower{cache: store, wake: make(chan struct{}, 1), mark: mark, dirty: newPolicyNames()}
}

// Wake returns a channel that has a value when a Step is due.
func (p *Follower) Wake() <-chan struct{} { return p.wake }

// Kinds returns the kinds of the watched objects.
func Kinds() []client.Object {
	return []client.Object{&networkingv1.NetworkPolicy{}, &corev1.Pod{}, &corev1.Namespace{}}
}

// syncTimeout bounds how long Enter waits for the watches.
const syncTimeout = 10 * time.Second

// Enter watches the objects and waits until the watches have all of them. From then on, steps hand them over. It may be called again.
func (p *Follower) Enter(ctx context.Context) error {
	if p.forgotten { // without Leave: steps have taken objects that the watches do not report again
		if err := p.Leave(ctx); err != nil {
			return err
		}
	}
	if len(p.synced) == 0 {
		if err := p.watch(ctx); err != nil {
			return err
		}
	}
	waiting, cancel := context.WithTimeout(ctx, syncTimeout)
	defer cancel()
	if !toolscache.WaitFor(waiting, "", p.synced...) {
		return errors.New("waiting for the API server to list all NetworkPolicies, pods and namespaces")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.listed = true
	return nil
}

func (p *Follower) watch(ctx context.Context) error {
	var synced []toolscache.DoneChecker
	p.mark.Begin()
	for _, kind := range Kinds() {
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
		synced = append(synced, registered.HasSyncedChecker())
	}
	p.synced = synced
	return nil
}

// Leave ends the watches once the step in progress has ended.
func (p *Follower) Leave(ctx context.Context) error {
	p.Forget()
	if len(p.synced) == 0 {
		p.forgotten = false
		return nil
	}
	// A step in progress may still read the objects, and that would begin a watch again.
	if err := p.runs.Do(ctx, func(context.Context) error { return nil }); err != nil {
		return err
	}
	p.synced, p.forgotten = nil, false
	p.mu.Lock()
	p.mark.Take()
	p.dirty = newPolicyNames()
	p.mu.Unlock()
	p.mark.End()
	var errs []error
	for _, kind := range Kinds() {
		errs = append(errs, p.cache.RemoveInformer(ctx, kind))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("ending watches of the API server: %w", err)
	}
	return nil
}

// Forget makes steps do nothing until the next Enter, and the first one after it hand over all objects: the network is about to discard its
// own. It does not wait for the step in progress: what that one still hands over stays with the network until the first step after Enter
// replaces it.
func (p *Follower) Forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.listed, p.known, p.forgotten = false, false, true
}

// samePolicyObject reports whether two states of an object are the same for policies: pods are written often.
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

func (p *Follower) note(object any) {
	p.mu.Lock()
	switch o := informer.LastState(object).(type) {
	case *corev1.Pod:
		p.dirty.pods[policy.Key{Namespace: o.Namespace, Name: o.Name}] = struct{}{}
	case *corev1.Namespace:
		p.dirty.namespaces[o.Name] = struct{}{}
	case *networkingv1.NetworkPolicy:
		p.dirty.policies[policy.Key{Namespace: o.Namespace, Name: o.Name}] = struct{}{}
		p.mark.Saw(object, true)
	}
	p.mu.Unlock()
	p.Signal()
}

// Signal makes a Step due.
func (p *Follower) Signal() { steps.Wake(p.wake) }

// passed records a change that does not affect policies.
func (p *Follower) passed(object any) {
	if _, ok := object.(*networkingv1.NetworkPolicy); ok {
		p.mark.Saw(object, false)
	}
}

// take begins a step with what changed since the last one. reset says that the step hands over all objects. ok is false if there is no step:
// the watches do not have all objects, or the network does not want them.
func (p *Follower) take() (dirty policyNames, reset, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.listed {
		return policyNames{}, false, false
	}
	p.mark.Take()
	dirty, reset = p.dirty, !p.known
	p.dirty, p.known = newPolicyNames(), true
	return dirty, reset, true
}

// putBack undoes take for objects that could not be read.
func (p *Follower) putBack(names policyNames, reset bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.Copy(p.dirty.policies, names.policies)
	maps.Copy(p.dirty.pods, names.pods)
	maps.Copy(p.dirty.namespaces, names.namespaces)
	if reset {
		p.known = false
	}
}

// Step hands over the changes since the last Step, and all objects the first time. It does nothing before Enter has returned. One step is
// made at a time, as steps.Runs describes.
func (p *Follower) Step(ctx context.Context, update func(context.Context, enforcer.Change) error) error {
	return p.runs.Do(ctx, func(ctx context.Context) error {
		names, reset, ok := p.take()
		if !ok {
			return nil
		}
		change, err := p.change(ctx, names)
		if err != nil {
			p.putBack(names, reset)
			p.mark.Done(err)
			return err
		}
		change.Reset = reset
		err = update(ctx, change)
		p.mark.Done(err)
		return err
	})
}

// change reads the changed objects.
func (p *Follower) change(ctx context.Context, names policyNames) (enforcer.Change, error) {
	change := enforcer.Change{
		Policies: map[policy.Key]*policy.Policy{}, Pods: map[policy.Key]*enforcer.Pod{}, Namespaces: map[string]*policy.Namespace{},
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

func (p *Follower) get(ctx context.Context, key policy.Key, into client.Object) (exists bool, err error) {
	return informer.Read(ctx, p.cache, client.ObjectKey{Namespace: key.Namespace, Name: key.Name}, into)
}

// policyPod returns the parts of a pod that policies depend on.
func policyPod(object *corev1.Pod) enforcer.Pod {
	pod := enforcer.Pod{Pod: policy.FromPod(object), UIDs: []string{string(object.UID)}}
	if mirrored := object.Annotations[corev1.MirrorPodAnnotationKey]; mirrored != "" {
		pod.UIDs = append(pod.UIDs, mirrored)
	}
	return pod
}

// StripPolicy removes from a NetworkPolicy the fields that have no effect here.
func StripPolicy(o *networkingv1.NetworkPolicy) {
	established, says := o.Annotations[policy.AnnotationEstablished]
	o.Annotations = nil
	if says {
		o.Annotations = map[string]string{policy.AnnotationEstablished: established}
	}
}

// StripPod removes from a pod the fields that policies do not depend on.
func StripPod(o *corev1.Pod) {
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

// Policy returns a NetworkPolicy from the watch, nil if there is none.
func (p *Follower) Policy(ctx context.Context, key policy.Key) *networkingv1.NetworkPolicy {
	var object networkingv1.NetworkPolicy
	// The cache has it, so the call does not block.
	if there, err := p.get(ctx, key, &object); !there || err != nil {
		return nil
	}
	return &object
}
