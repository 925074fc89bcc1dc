package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/health"
	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/network"
	"weft.dev/weft/internal/node"
	"weft.dev/weft/internal/overlay"
	"weft.dev/weft/internal/placement"
)

// networks are the networks of this node: which of them are present, and which is the default.
type networks struct {
	agent *agent
	// kinds are those beside the overlay.
	kinds []*kind
	// overlay is closed once the overlay is to be started.
	overlay     chan struct{}
	needOverlay func()
	// changed wakes the writer of the runtime's configuration.
	changed chan struct{}

	mu sync.Mutex
	// home is the overlay's presence, known once its objects are.
	home  network.Presence
	known bool
}

// kind is a network beside the overlay, present or not.
type kind struct {
	network.Kind
	objects cache.Cache
	api     client.Client
	wake    chan struct{}

	mu sync.Mutex
	// presence is what the API server's objects say, known once that is decided.
	presence network.Presence
	known    bool
	// watched: what Presence names is in the watches, and so what pods are bound by.
	watched bool
	// network is nil while the network does not run here, and why says what it waits for.
	network network.Network
	why     string
}

// newNetworks returns the networks of an agent. Nothing is watched before run.
func newNetworks(a *agent) (*networks, error) {
	n := &networks{agent: a, overlay: make(chan struct{}), changed: make(chan struct{}, 1)}
	n.needOverlay = sync.OnceFunc(func() { close(n.overlay) })
	for _, k := range a.opts.Networks {
		made, err := newKind(a, k)
		if err != nil {
			return nil, fmt.Errorf("network %s: %w", k.Name, err)
		}
		n.kinds = append(n.kinds, made)
	}
	return n, nil
}

func newKind(a *agent, k network.Kind) (*kind, error) {
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	if k.Scheme != nil {
		if err := k.Scheme(scheme); err != nil {
			return nil, fmt.Errorf("scheme: %w", err)
		}
	}
	// What there is to watch is known: asking the API server would need it to be there before the agent can start.
	mapper := meta.NewDefaultRESTMapper(nil)
	by := map[client.Object]cache.ByObject{}
	for _, object := range k.Objects {
		gvk, err := apiutil.GVKForObject(object.Kind, scheme)
		if err != nil {
			return nil, fmt.Errorf("scheme: %w", err)
		}
		scope := meta.RESTScopeRoot
		if object.Namespaced {
			scope = meta.RESTScopeNamespace
		}
		if object.Resource == "" {
			mapper.Add(gvk, scope)
		} else {
			mapper.AddSpecific(gvk, gvk.GroupVersion().WithResource(object.Resource), gvk.GroupVersion().WithResource(object.Resource), scope)
		}
		watched := object.By
		watched.Transform = object.Strip
		if object.Strip == nil {
			watched.Transform = cache.TransformStripManagedFields()
		}
		by[object.Kind] = watched
	}
	objects, err := cache.New(a.opts.Config, cache.Options{Scheme: scheme, Mapper: mapper, ByObject: by})
	if err != nil {
		return nil, fmt.Errorf("watching the API server: %w", err)
	}
	api, err := client.New(a.opts.Config, client.Options{Scheme: scheme, Mapper: mapper})
	if err != nil {
		return nil, fmt.Errorf("API server: %w", err)
	}
	return &kind{Kind: k, objects: objects, api: api, wake: make(chan struct{}, 1), why: "its objects have not been read yet"}, nil
}

// run starts and stops networks as they come and go, until ctx ends. What runs them ends with engineCtx.
func (n *networks) run(ctx, engineCtx context.Context, e *engines, group *errgroup.Group) error {
	if len(n.kinds) == 0 {
		n.needOverlay()
		return nil
	}
	n.agent.waiting.set("waiting for the API server to say which networks are configured")
	n.agent.watchNode(e, n.ready)
	n.agent.health.Warn(health.Check{Name: "networks", Run: n.problems})
	following, followCtx := errgroup.WithContext(ctx)
	for _, k := range n.kinds {
		following.Go(func() error { return k.objects.Start(followCtx) })
		following.Go(func() error { return n.follow(followCtx, engineCtx, k, e, group) })
	}
	following.Go(func() error { return n.followOverlay(followCtx) })
	following.Go(func() error { return n.configure(followCtx, e) })
	return following.Wait()
}

// followOverlay starts the overlay once a ClusterNetwork brings it, or its pods need it.
func (n *networks) followOverlay(ctx context.Context) error {
	a := n.agent
	if hasRecords(a.store, overlay.NetworkName) {
		n.needOverlay()
	}
	informer, err := a.objects.cache.GetInformer(ctx, &networkv1.ClusterNetwork{}, cache.BlockUntilSynced(true))
	if err != nil {
		return ignoreEnd(ctx, err)
	}
	look := func(any) {
		var object networkv1.ClusterNetwork
		err := a.objects.cache.Get(ctx, client.ObjectKey{Name: defaultClusterNetwork}, &object)
		p := network.Presence{Present: err == nil, Cluster: true, Why: "there is no ClusterNetwork " + defaultClusterNetwork}
		if p.Present {
			p.Why, p.Default = "ClusterNetwork "+defaultClusterNetwork, object.Annotations[placement.AnnotationDefault] == "true"
			n.needOverlay()
		} else if !hasRecords(a.store, overlay.NetworkName) {
			n.leaveOverlay()
		}
		n.mu.Lock()
		n.home, n.known = p, true
		n.mu.Unlock()
		wakeUp(n.changed)
	}
	_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: look, UpdateFunc: func(_, now any) { look(now) }, DeleteFunc: look,
	})
	if err != nil {
		return fmt.Errorf("watching the API server: %w", err)
	}
	look(nil)
	return nil
}

// leaveOverlay has what an overlay left removed that is not configured any more and has no pods here.
func (n *networks) leaveOverlay() {
	select {
	case <-n.overlay: // it runs, and goes on
	default:
		if e := n.agent.engines.Load(); e != nil {
			e.handovers.Done(overlay.NetworkName)
		}
	}
}

// follow keeps one network running while it is present, or has attachments here.
func (n *networks) follow(ctx, engineCtx context.Context, k *kind, e *engines, group *errgroup.Group) error {
	signal := toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { wakeUp(k.wake) }, UpdateFunc: func(any, any) { wakeUp(k.wake) }, DeleteFunc: func(any) { wakeUp(k.wake) },
	}
	// What it left in a former life goes on at once: its pods do not wait for the API server.
	watching := make(chan error, 1)
	go func() { watching <- n.watch(ctx, k, signal) }()
	if !hasRecords(n.agent.store, k.Name) {
		if err := <-watching; err != nil || ctx.Err() != nil {
			return ignoreEnd(ctx, err)
		}
	} else if err := n.serve(ctx, engineCtx, k, e, group); err != nil || ctx.Err() != nil {
		return err
	}
	for ctx.Err() == nil {
		presence, err := n.look(ctx, k)
		switch {
		case err != nil:
			n.agent.opts.Log.Warn("reading whether a network is configured failed", "network", k.Name, "error", err)
		case presence.Present || hasRecords(n.agent.store, k.Name):
			if err := n.serve(ctx, engineCtx, k, e, group); err != nil {
				return err
			}
			continue
		default:
			e.handovers.Done(k.Name) // what is left of it is removed
		}
		select {
		case <-ctx.Done():
		case <-k.wake:
		}
	}
	return nil
}

// servedRetry is how often the API server is asked whether it serves a network's kinds by now: of a definition that is installed later,
// no watch of the kind tells.
const servedRetry = time.Minute

// watch watches the objects that say whether the network is configured, once the API server serves their kinds. Until then the network is
// not present.
func (n *networks) watch(ctx context.Context, k *kind, signal toolscache.ResourceEventHandler) error {
	for _, object := range k.Presence {
		n.awaitServed(ctx, k, object)
		informer, err := k.objects.GetInformer(ctx, object, cache.BlockUntilSynced(true))
		if err != nil {
			return ignoreEnd(ctx, err)
		}
		if _, err := informer.AddEventHandler(signal); err != nil {
			return fmt.Errorf("network %s: watching the API server: %w", k.Name, err)
		}
	}
	k.mu.Lock()
	k.watched = true
	k.mu.Unlock()
	wakeUp(k.wake)
	return nil
}

// binds reports whether the network's bindings can be read, and count: also while it is not present, as a pod that is bound to it is then
// refused, and not placed elsewhere.
func (k *kind) binds() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.Bind != nil && (k.watched || k.presence.Present)
}

// awaitServed returns once the API server serves the kind of an object, or ctx ends.
func (n *networks) awaitServed(ctx context.Context, k *kind, object client.Object) {
	for {
		err := k.served(ctx, object)
		if err == nil || ctx.Err() != nil {
			return
		}
		retry := lastFollowRetry
		if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
			retry = servedRetry
			k.absent(fmt.Sprintf("the API server does not serve %T", object))
			wakeUp(n.changed)
			if !hasRecords(n.agent.store, k.Name) {
				n.agent.engines.Load().handovers.Done(k.Name)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(retry):
		}
	}
}

// served returns nil when the API server serves the kind of an object.
func (k *kind) served(ctx context.Context, object client.Object) error {
	gvk, err := apiutil.GVKForObject(object, k.api.Scheme())
	if err != nil {
		return err
	}
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(gvk.GroupVersion().WithKind(gvk.Kind + "List"))
	err = k.api.List(ctx, list, client.Limit(1))
	if apierrors.IsForbidden(err) { // the agent may read some of them only, which are those that it watches
		return nil
	}
	return err
}

// absent says that the network is not present, and why.
func (k *kind) absent(why string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.presence, k.known = network.Presence{Why: why}, true
	if k.network == nil {
		k.why = why
	}
}

// look decides whether the network is present.
func (n *networks) look(ctx context.Context, k *kind) (network.Presence, error) {
	limited, cancel := context.WithTimeout(ctx, podTimeout)
	defer cancel()
	presence, err := k.Present(limited, k.objects)
	if err != nil {
		k.mu.Lock()
		defer k.mu.Unlock()
		return k.presence, err
	}
	k.mu.Lock()
	k.presence, k.known = presence, true
	if !presence.Present && k.network == nil {
		k.why = cmp.Or(presence.Why, "it is not configured")
	}
	k.mu.Unlock()
	wakeUp(n.changed)
	return presence, nil
}

// serve runs a network until it is neither present nor has attachments here.
func (n *networks) serve(ctx, engineCtx context.Context, k *kind, e *engines, group *errgroup.Group) error {
	a := n.agent
	made, runner, err := n.open(ctx, k, e, group)
	if err != nil {
		return ignoreEnd(ctx, err)
	}
	runCtx, stop := context.WithCancel(engineCtx)
	leave := a.handler.Serve(k.Name, made, runner.HandedOver())
	k.set(made, "")
	wakeUp(n.changed)
	ended := make(chan struct{})
	group.Go(func() error {
		defer close(ended)
		defer stop()
		err := runner.Run(runCtx)
		if err != nil && runCtx.Err() == nil {
			return fmt.Errorf("network %s: %w", k.Name, err)
		}
		return nil
	})
	group.Go(func() error {
		select {
		case <-runner.HandedOver():
			e.handovers.Done(k.Name)
			wakeUp(n.changed)
		case <-runCtx.Done():
		}
		return nil
	})
	a.opts.Log.Info("serving a network", "network", k.Name)
	for {
		select {
		case <-ctx.Done():
			return nil // requests that are under way find the network: it ends with the engines
		case <-ended:
			return nil
		case <-k.wake:
		}
		presence, err := n.look(ctx, k)
		if err == nil && !presence.Present && !hasRecords(a.store, k.Name) {
			a.opts.Log.Info("network is no longer configured, and has no pods on this node", "network", k.Name)
			leave()
			k.set(nil, cmp.Or(presence.Why, "it is not configured"))
			stop()
			<-ended
			return nil
		}
	}
}

// open makes the network, again and again until what it needs of the node is there.
func (n *networks) open(ctx context.Context, k *kind, e *engines, group *errgroup.Group) (network.Network, network.Runner, error) {
	a := n.agent
	delay := firstFollowRetry
	for {
		if _, err := setAll(k.Care.Sysctls); err != nil {
			return nil, nil, err
		}
		made, runner, err := k.New(ctx, n.node(k, e, group), network.Deps{
			Log: a.opts.Log.With("network", k.Name), Records: a.handler.Records(k.Name), Objects: k.objects, API: k.api, Config: a.opts.Config,
			Events: objectEvents{recorder: a.events, node: a.opts.Node}, Changed: func() { wakeUp(n.changed) },
			Report: a.reportOf(k.Name),
		})
		if err == nil || ctx.Err() != nil {
			return made, runner, err
		}
		k.set(nil, err.Error())
		a.opts.Log.Warn("network failed to start, trying again", "network", k.Name, "error", err)
		select {
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		case <-k.wake:
		case <-time.After(delay):
		}
		delay = min(2*delay, lastFollowRetry)
	}
}

// node is this node, as the network has it.
func (n *networks) node(k *kind, e *engines, group *errgroup.Group) *node.Node {
	a := n.agent
	return &node.Node{
		Name: a.opts.Node, BootID: a.bootID, RunDir: a.opts.RunDir, StateDir: a.opts.StateDir,
		Links: e.linkLoop, Rules: e.ruleLoop, Pods: e.pods, Pass: e.firewall.pass, WatchLinks: e.watchers.add,
		Observe: a.tables.add, Ranges: link.Ranges, Elsewhere: link.Elsewhere,
		Switch: func(ctx context.Context) (*node.Switch, error) {
			k.set(nil, "waiting for Open vSwitch's database at "+a.opts.OVSRunDir)
			if err := a.openSwitch(ctx, e, func(e *engines) { e.runSwitch(a.engineCtx, group) }); err != nil {
				return nil, err
			}
			return &node.Switch{Datapath: e.datapath, Database: e.rows, Rows: e.rowLoop, Bridges: e.bridges}, nil
		},
	}
}

// decided reports whether it is known if the network is present.
func (k *kind) decided() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.known
}

func (k *kind) set(made network.Network, why string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.network, k.why = made, why
}

// state returns the network's presence, and why it cannot serve; nil: it can, or nothing is known against it.
func (k *kind) state() (presence network.Presence, running bool, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.network == nil:
		return k.presence, false, errors.New(k.why)
	case k.known && !k.presence.Present:
		return k.presence, true, fmt.Errorf("it is no longer configured (%s), and still serves the pods that it has on this node", k.presence.Why)
	}
	return k.presence, true, k.network.Ready()
}

// serving returns the names of the networks that are present, the overlay's first.
func (n *networks) serving() []string {
	var names []string
	n.mu.Lock()
	if n.home.Present || len(n.kinds) == 0 {
		names = append(names, overlay.NetworkName)
	}
	n.mu.Unlock()
	for _, k := range n.kinds {
		if presence, running, _ := k.state(); presence.Present || running {
			names = append(names, k.Name)
		}
	}
	return names
}

// standard returns the name of the default network and why it is; "" while there is none.
func (n *networks) standard() (name, reason string) {
	if len(n.kinds) == 0 {
		return overlay.NetworkName, "it is the only network"
	}
	n.mu.Lock()
	home := n.home
	n.mu.Unlock()
	all := []struct {
		name string
		network.Presence
	}{{overlay.NetworkName, home}}
	for _, k := range n.kinds {
		presence, _, _ := k.state()
		all = append(all, struct {
			name string
			network.Presence
		}{k.Name, presence})
	}
	for _, p := range all {
		if p.Present && p.Default {
			return p.name, p.Why + " has annotation " + placement.AnnotationDefault
		}
	}
	for _, p := range all {
		if p.Present && p.Cluster {
			return p.name, "it is the cluster's default network (" + p.Why + ")"
		}
	}
	return "", ""
}

// decided returns nil once it is known of every network whether it is present.
func (n *networks) decided() error {
	if len(n.kinds) == 0 {
		return nil
	}
	n.mu.Lock()
	known := n.known
	n.mu.Unlock()
	for _, k := range n.kinds {
		known = known && k.decided()
	}
	if !known {
		return errors.New("the API server has not reported yet which networks are configured")
	}
	return nil
}

// cluster returns what placement has to know of the networks.
func (n *networks) cluster(ctx context.Context) (placement.Cluster, int, error) {
	c := placement.Cluster{Absent: map[string]string{}, Known: []string{overlay.NetworkName}}
	c.Default, c.DefaultReason = n.standard()
	if err := n.decided(); err != nil {
		return c, 0, err
	}
	n.mu.Lock()
	if !n.home.Present {
		c.Absent[overlay.NetworkName] = n.home.Why
	}
	n.mu.Unlock()
	for _, k := range n.kinds {
		c.Known = append(c.Known, k.Name)
		presence, _, why := k.state()
		if !presence.Present {
			if why == nil {
				why = errors.New("it is not configured")
			}
			c.Absent[k.Name] = why.Error()
		}
		if !k.binds() {
			continue
		}
		binder, err := k.Bind(ctx, k.objects)
		if err != nil {
			return c, 0, fmt.Errorf("bindings of network %s: %w", k.Name, err)
		}
		c.Binders = append(c.Binders, binder)
	}
	return c, len(n.serving()), nil
}

// removed is called when a record of a network is gone.
func (n *networks) removed(name string) {
	for _, k := range n.kinds {
		if k.Name == name {
			wakeUp(k.wake)
		}
	}
}

// problems returns why networks that are present cannot serve pods, but for the default one.
func (n *networks) problems() error {
	standard, _ := n.standard()
	var errs []error
	for _, k := range n.kinds {
		presence, running, err := k.state()
		if err != nil && k.Name != standard && (presence.Present || running) {
			errs = append(errs, fmt.Errorf("network %s: %w", k.Name, err))
		}
	}
	return errors.Join(errs...)
}

// ready returns nil when the default network can serve pods.
func (n *networks) ready() error {
	standard, _ := n.standard()
	for _, k := range n.kinds {
		if k.Name == standard {
			_, _, err := k.state()
			return err
		}
	}
	if r := n.agent.running.Load(); r != nil {
		return r.network.Ready()
	}
	return errors.New(n.agent.waiting.get())
}

// configure writes the runtime's configuration and the node's condition for a default network that is not the overlay, which does so itself.
func (n *networks) configure(ctx context.Context, e *engines) error {
	return n.agent.keepInStep(ctx, n.changed, "the runtime's configuration", func() error {
		if n.decided() != nil {
			return nil //nolint:nilerr // pods could not be placed yet; what is decided wakes this
		}
		standard, _ := n.standard()
		if r := n.agent.running.Load(); standard == overlay.NetworkName && r != nil && r.network.Ready() == nil {
			return n.configureOverlay(ctx, e)
		}
		at := slices.IndexFunc(n.kinds, func(k *kind) bool { return k.Name == standard })
		if at < 0 || n.kinds[at].CNI.Content == nil {
			return nil // there is none, or it brings no configuration
		}
		if _, running, err := n.kinds[at].state(); !running || err != nil {
			return nil //nolint:nilerr // it wakes this when that is over
		}
		return n.configureKind(ctx, e, n.kinds[at])
	})
}

// configureKind makes a network's configuration the node's.
func (n *networks) configureKind(ctx context.Context, e *engines, k *kind) error {
	data, err := k.CNI.Content()
	if err != nil {
		return fmt.Errorf("CNI configuration of network %s: %w", k.Name, err)
	}
	if path := filepath.Join(n.agent.opts.CNIConfDir, k.CNI.Name); !isThere(path, data, confMode) {
		if err := writeAtomically(path, data, confMode); err != nil {
			return err
		}
	}
	n.agent.configured.Store(false)
	if err := n.withdrawConf(k.CNI.Name); err != nil {
		return err
	}
	return n.agent.tellReady(ctx, e.firewall.warning())
}

// configureOverlay makes the overlay's configuration the node's.
func (n *networks) configureOverlay(ctx context.Context, e *engines) error {
	a := n.agent
	if err := writeConf(a.opts.CNIConfDir, a.socket, a.records, PortsNamespace(a.opts.RunDir)); err != nil {
		return err
	}
	a.configured.Store(true)
	if err := n.withdrawConf(CNIConfName); err != nil {
		return err
	}
	return a.tellReady(ctx, e.firewall.warning())
}

// withdrawConf removes the configurations that the agent wrote for other networks: a node has one. A file of the same name that differs is
// another program's, and stays.
func (n *networks) withdrawConf(now string) error {
	a := n.agent
	mine, err := confData(a.socket, a.records, PortsNamespace(a.opts.RunDir))
	if err != nil {
		return err
	}
	written := map[string][]byte{CNIConfName: mine}
	for _, k := range n.kinds {
		if k.CNI.Content == nil {
			continue
		}
		if data, err := k.CNI.Content(); err == nil {
			written[k.CNI.Name] = data
		}
	}
	for name, data := range written {
		path := filepath.Join(a.opts.CNIConfDir, name)
		if name == now || !isThere(path, data, confMode) {
			continue
		}
		if err := os.Remove(path); err != nil {
			return fmt.Errorf("CNI configuration of a network that is not the default: %w", err)
		}
	}
	return nil
}

// hasRecords reports whether a network has attachments here.
func hasRecords(store *attach.Store, name string) bool {
	return slices.ContainsFunc(store.List(), func(rec attach.Record) bool { return network.KindOf(rec.Network) == name })
}

// objectEvents reports events of objects.
type objectEvents struct {
	recorder *recorder
	node     string
}

// Warning implements network.Events.
func (o objectEvents) Warning(object client.Object, reason, action, note string) {
	gvk := object.GetObjectKind().GroupVersionKind()
	o.recorder.warn(Object{
		Kind: gvk.Kind, APIVersion: gvk.GroupVersion().String(), Namespace: object.GetNamespace(), Name: object.GetName(),
		UID: string(object.GetUID()), Version: object.GetResourceVersion(),
	}, reason, action, o.node+": "+note)
}
