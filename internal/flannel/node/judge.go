package node

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/client-go/tools/cache"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"golang.org/x/sync/errgroup"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/nft/nftnl"
	"weft.dev/weft/internal/policy"
	"weft.dev/weft/internal/policy/nftables"
	"weft.dev/weft/internal/reconcile"
)

// Pod is an attached pod, as a Judge has it.
type Pod struct {
	Key                  attach.Key
	Namespace, Name, UID string
	Addresses            []netip.Addr
}

func podOf(rec *attach.Record) Pod {
	pod := Pod{Key: rec.Key(), Namespace: rec.PodNamespace, Name: rec.PodName, UID: rec.PodUID}
	for _, address := range rec.Addresses {
		pod.Addresses = append(pod.Addresses, address.Addr())
	}
	return pod
}

// Judge enforces NetworkPolicies on the pods of this node. A pod that is not admitted is closed.
type Judge interface {
	// Run follows policies until ctx ends.
	Run(ctx context.Context) error
	// HandedOver is closed once all policies are known.
	HandedOver() <-chan struct{}
	// Admit returns once the pods' verdicts are in effect. The first call, after HandedOver, has all pods that are attached. A pod may
	// be admitted again.
	Admit(ctx context.Context, pods []Pod) error
	// Dismiss closes pods. It does not wait.
	Dismiss(keys []attach.Key)
}

const (
	judgeTable = "weft-flannel-pods"
	// judgePriority is before the filter chains of others.
	judgePriority = -10
)

// closer is a Judge that lets pods of no NetworkPolicy through, and closes what a NetworkPolicy isolates, in that direction, without
// allowing what its rules allow.
type closer struct {
	node    string
	objects ctrlcache.Cache
	engine  *nftnl.Engine
	loop    *portLoop
	bridge  string
	wake    chan struct{}
	handed  chan struct{}

	// mu guards what follows.
	mu      sync.Mutex
	pods    map[attach.Key]Pod
	started bool
}

// newCloser returns a judge in the network namespace that the caller is in.
func newCloser(node, bridge string, objects ctrlcache.Cache) (*closer, error) {
	engine, err := nftnl.NewEngine(nftnl.Options{Family: nftnl.FamilyInet, Table: judgeTable})
	if err != nil {
		return nil, err
	}
	return &closer{
		node: node, bridge: bridge, objects: objects, engine: engine, wake: make(chan struct{}, 1), handed: make(chan struct{}), pods: map[attach.Key]Pod{},
		loop: reconcile.NewLoop(engine, reconcile.Options[nftnl.Key, nftnl.Item]{Name: "nftables " + judgeTable}),
	}, nil
}

// HandedOver implements Judge.
func (c *closer) HandedOver() <-chan struct{} { return c.handed }

func (c *closer) signal() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// Run implements Judge.
func (c *closer) Run(ctx context.Context) error {
	defer c.engine.Close()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return c.loop.Run(ctx) })
	group.Go(func() error {
		drifts, err := c.engine.Watch(ctx)
		if err != nil {
			return err
		}
		for drift := range drifts {
			if drift.Err != nil {
				return drift.Err
			}
			c.loop.Resync()
		}
		return ctx.Err()
	})
	group.Go(func() error { return c.follow(ctx) })
	return group.Wait()
}

// follow compiles all pods again whenever a policy or a pod changes.
func (c *closer) follow(ctx context.Context) error {
	told := cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { c.signal() }, UpdateFunc: func(any, any) { c.signal() }, DeleteFunc: func(any) { c.signal() },
	}
	for _, kind := range []client.Object{&networkingv1.NetworkPolicy{}, &corev1.Pod{}} {
		informer, err := c.objects.GetInformer(ctx, kind, ctrlcache.BlockUntilSynced(true))
		if err == nil {
			_, err = informer.AddEventHandler(told)
		}
		if err != nil {
			return fmt.Errorf("watching the API server: %w", err)
		}
	}
	close(c.handed)
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-c.wake:
		}
		if err := c.step(ctx); err != nil {
			return err
		}
	}
}

func (c *closer) step(ctx context.Context) error {
	objects, err := c.list(ctx)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.started {
		c.loop.Set(c.compile(objects))
	}
	return nil
}

// seen are the objects that the verdicts depend on.
type seen struct {
	policies networkingv1.NetworkPolicyList
	pods     corev1.PodList
}

func (c *closer) list(ctx context.Context) (*seen, error) {
	s := &seen{}
	return s, errors.Join(c.objects.List(ctx, &s.policies), c.objects.List(ctx, &s.pods))
}

// compile returns the fragments of all pods and, in one more, the empty chains of all policies. The caller holds mu.
func (c *closer) compile(objects *seen) map[reconcile.Owner]items {
	index := policy.New(c.node)
	chains := items{}
	for i := range objects.policies.Items {
		compiled, _ := policy.FromNetworkPolicy(&objects.policies.Items[i]) // one that is wrong isolates as well
		index.SetPolicy(compiled)
		for key, item := range nftables.Policy(compiled.Key, nil) {
			chains[key] = item
		}
	}
	known := map[policy.Key]bool{}
	for i := range objects.pods.Items {
		pod := policy.FromPod(&objects.pods.Items[i])
		pod.HostNetwork, pod.Ended = false, false
		known[pod.Key] = true
		index.SetPod(pod)
	}
	fragments := map[reconcile.Owner]items{policiesOwner: chains}
	for key, pod := range c.pods {
		name := policy.Key{Namespace: pod.Namespace, Name: pod.Name}
		if !known[name] { // not in the watch yet: it stays closed until it is
			continue
		}
		fragments[reconcile.Owner(key.Owner())] = nftables.Pod(index, name, pod.Addresses)
	}
	return fragments
}

// policiesOwner owns the chains of policies.
const policiesOwner reconcile.Owner = "policies"

// Admit implements Judge.
func (c *closer) Admit(ctx context.Context, pods []Pod) error {
	objects, err := c.list(ctx)
	if err != nil {
		return err
	}
	c.mu.Lock()
	for _, pod := range pods {
		c.pods[pod.Key] = pod
	}
	all := c.compile(objects)
	first := !c.started
	c.started = true
	c.mu.Unlock()
	defer c.signal() // what changed meanwhile
	if first {
		all[owner] = nftables.Static(nftables.Config{Bridge: c.bridge, Priority: judgePriority})
		return c.loop.Start(ctx, all)
	}
	fragments := map[reconcile.Owner]items{policiesOwner: all[policiesOwner]}
	for _, pod := range pods {
		fragments[reconcile.Owner(pod.Key.Owner())] = all[reconcile.Owner(pod.Key.Owner())]
	}
	return c.loop.Apply(ctx, fragments)
}

// Dismiss implements Judge.
func (c *closer) Dismiss(keys []attach.Key) {
	fragments := map[reconcile.Owner]items{}
	c.mu.Lock()
	for _, key := range keys {
		delete(c.pods, key)
		fragments[reconcile.Owner(key.Owner())] = nil
	}
	c.mu.Unlock()
	c.loop.Set(fragments)
}
