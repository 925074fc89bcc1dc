package cluster

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
	"weft.dev/weft/internal/cluster"
	"weft.dev/weft/internal/vpc/cluster/plan"
	"weft.dev/weft/internal/vpc/nat"
	"weft.dev/weft/internal/vpc/objects"
)

// key names an object of one kind.
type key struct {
	kind            reflect.Type
	namespace, name string
}

func keyOf(object client.Object) key {
	return key{reflect.TypeOf(object), object.GetNamespace(), object.GetName()}
}

// version identifies the version of an object which this replica wrote, or read from the API server itself.
type version struct {
	uid      types.UID
	resource string
}

// news has what the watches have reported since the last plan.
type news struct {
	mu      sync.Mutex
	changed map[key]client.Object // the last state of each object
	deleted map[key]bool          // the object was deleted since then
	stale   bool                  // everything has to be read again
	wanted  bool                  // a leading replica has read everything; before that, nothing needs to be recorded
}

func (n *news) add(object client.Object, deleted bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.wanted {
		return
	}
	if n.changed == nil {
		n.changed, n.deleted = map[key]client.Object{}, map[key]bool{}
	}
	at := keyOf(object)
	n.changed[at], n.deleted[at] = object, deleted
}

// take returns and clears what is new. Later events are recorded for the next call.
func (n *news) take() (changed map[key]client.Object, deleted map[key]bool, stale bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	changed, deleted, stale = n.changed, n.deleted, n.stale
	n.changed, n.deleted, n.stale, n.wanted = nil, nil, false, true
	return changed, deleted, stale
}

// heard records objects as they change, and requests a plan. An event of a Subnet without a change, as a periodic resync sends, causes
// everything to be read again.
func heard[T client.Object](n *news) handler.TypedEventHandler[T, cluster.Everything] {
	type queue = workqueue.TypedRateLimitingInterface[cluster.Everything]
	return handler.TypedFuncs[T, cluster.Everything]{
		CreateFunc: func(_ context.Context, e event.TypedCreateEvent[T], q queue) {
			n.add(e.Object, false)
			q.Add(cluster.Everything{})
		},
		UpdateFunc: func(_ context.Context, e event.TypedUpdateEvent[T], q queue) {
			if e.ObjectOld.GetResourceVersion() != e.ObjectNew.GetResourceVersion() {
				n.add(e.ObjectNew, false)
				q.Add(cluster.Everything{})
				return
			}
			if _, subnet := any(e.ObjectNew).(*kubeovn.Subnet); subnet {
				n.mu.Lock()
				n.stale = true
				n.mu.Unlock()
				q.Add(cluster.Everything{})
			}
		},
		DeleteFunc: func(_ context.Context, e event.TypedDeleteEvent[T], q queue) {
			n.add(e.Object, true)
			q.Add(cluster.Everything{})
		},
	}
}

// learn passes what is new to the planner.
func (r *reconciler) learn(ctx context.Context) error {
	changed, deleted, stale := r.news.take()
	if stale || !r.loaded {
		r.loaded = false
		if err := r.load(ctx); err != nil {
			return err
		}
		r.loaded, r.fresh = true, true
		return nil
	}
	for at, object := range changed {
		order := r.order(at, object, deleted[at])
		if order < 0 {
			continue
		}
		if order > 0 {
			r.changed = time.Now()
		}
		if delete(r.written, at); order > 0 || !ofNAT(object) {
			r.handOver(object, deleted[at])
		}
	}
	return nil
}

// ofNAT reports whether the object is a gateway, an EIP or a rule. A change of one of them makes the planner read all of them, so that the
// version which this replica wrote is not handed over a second time.
func ofNAT(object client.Object) bool {
	switch object.(type) {
	case *kubeovn.VpcNatGateway, *kubeovn.IptablesEIP, *kubeovn.IptablesSnatRule, *kubeovn.IptablesDnatRule, *kubeovn.IptablesFIPRule:
		return true
	}
	return false
}

// order compares the watch's state of an object with what this replica wrote, or read from the API server itself: negative if the watch's
// state is older, 0 if it is the same, positive if it is newer or the replica has not written the object.
func (r *reconciler) order(at key, object client.Object, deleted bool) int {
	known, there := r.written[at]
	switch {
	case !there:
		return 1
	case deleted && object.GetUID() != known.uid:
		return -1
	case deleted:
		return 1
	}
	order, err := resourceversion.CompareResourceVersion(object.GetResourceVersion(), known.resource)
	if err != nil {
		return 1
	}
	return order
}

// pending reports whether the watches have reported something that no plan has yet.
func (r *reconciler) pending() bool {
	r.news.mu.Lock()
	defer r.news.mu.Unlock()
	for at, object := range r.news.changed {
		if r.order(at, object, r.news.deleted[at]) > 0 {
			return true
		}
	}
	return r.news.stale
}

// handOver passes one object to the planner.
func (r *reconciler) handOver(object client.Object, deleted bool) {
	switch o := object.(type) {
	case *corev1.ConfigMap:
		if o.Name == kubeovn.NATGatewayConfigMap || o.Name == kubeovn.NATConfigMap {
			if r.config[o.Name] = o.Data; deleted {
				delete(r.config, o.Name)
			}
			r.planner.SetNAT(objects.ParseNATConfig(r.config[kubeovn.NATGatewayConfigMap], r.config[kubeovn.NATConfigMap]))
		}
		return
	case *unstructured.Unstructured:
		name := o.GetName() + "." + o.GetNamespace()
		config, there := nat.Definitions(&unstructured.UnstructuredList{Items: []unstructured.Unstructured{*o}})[name]
		if there && !deleted {
			r.planner.SetDefinition(name, config)
		} else {
			r.planner.RemoveDefinition(name)
		}
		return
	case *appsv1.StatefulSet:
		if !strings.HasPrefix(o.Name, nat.PodPrefix) || o.Labels[nat.Label] == "" {
			return // another program's
		}
	}
	planned, ok := object.(plan.Object)
	switch {
	case !ok:
	case deleted:
		r.planner.Remove(planned)
	default:
		r.planner.Set(planned)
	}
}

// knows records that this replica wrote an object, or read it from the API server itself.
func (r *reconciler) knows(object client.Object) {
	object.SetManagedFields(nil) // as in the cache
	r.written[keyOf(object)] = version{object.GetUID(), object.GetResourceVersion()}
	r.handOver(object, false)
}

// load passes all objects to a new planner: those that store assignments from the API server itself, the others from the cache. The planner
// keeps the objects without copying: the cache never changes them.
func (r *reconciler) load(ctx context.Context) error {
	r.planner, r.config, r.written = plan.NewPlanner(), map[string]map[string]string{}, map[key]version{}
	for _, live := range []struct {
		list client.ObjectList
		kind client.Object
	}{
		{&kubeovn.VpcList{}, &kubeovn.Vpc{}},
		{&kubeovn.SubnetList{}, &kubeovn.Subnet{}},
		{&kubeovn.VpcNatGatewayList{}, &kubeovn.VpcNatGateway{}},
		{&kubeovn.IPList{}, &kubeovn.IP{}},
		{&kubeovn.IptablesEIPList{}, &kubeovn.IptablesEIP{}},
	} {
		if err := r.loadLive(ctx, live.list, live.kind); err != nil {
			return err
		}
	}
	for _, kind := range []client.Object{
		&corev1.Namespace{}, &networkingv1.NetworkPolicy{}, &corev1.Pod{},
		&kubeovn.IptablesSnatRule{}, &kubeovn.IptablesDnatRule{}, &kubeovn.IptablesFIPRule{},
	} {
		cached, err := r.cached(ctx, kind)
		if err != nil {
			return err
		}
		for _, object := range cached.List() {
			if object, ok := object.(client.Object); ok {
				r.handOver(object, false)
			}
		}
	}
	for _, list := range []client.ObjectList{&appsv1.StatefulSetList{}, &corev1.ConfigMapList{}, nat.DefinitionList()} {
		err := loadList(ctx, r.tools.Client, list, func(object client.Object) { r.handOver(object, false) })
		if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
			continue // the definition of NetworkAttachmentDefinition is not installed
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// loadLive passes the objects of a kind to the planner as the API server has them. If the cache has the same version of an object, the
// planner gets the cache's, so that it is in memory once.
func (r *reconciler) loadLive(ctx context.Context, list client.ObjectList, kind client.Object) error {
	cached, err := r.cached(ctx, kind)
	if err != nil {
		return err
	}
	return loadList(ctx, r.tools.Live, list, func(object client.Object) {
		have, _, err := cached.Get(object)
		if same, ok := have.(client.Object); err == nil && ok && same.GetUID() == object.GetUID() && same.GetResourceVersion() == object.GetResourceVersion() {
			r.written[keyOf(same)] = version{same.GetUID(), same.GetResourceVersion()}
			r.handOver(same, false)
			return
		}
		// An element of the list would keep the whole list in memory.
		r.knows(object.DeepCopyObject().(client.Object)) //nolint:forcetypeassert // a copy has the object's type
	})
}

var errKind = errors.New("not an object")

// cached returns the cache's store of a kind. Its objects are the cache's own; a list of the cache's client would copy each of them.
func (r *reconciler) cached(ctx context.Context, kind client.Object) (toolscache.Store, error) {
	informer, err := r.tools.Manager.GetCache().GetInformer(ctx, kind)
	if err != nil {
		return nil, fmt.Errorf("read %T from the cache: %w", kind, err)
	}
	has, ok := informer.(interface{ GetStore() toolscache.Store })
	if !ok {
		return nil, fmt.Errorf("read %T from the cache: %w: a cache of several namespaces", kind, errKind)
	}
	return has.GetStore(), nil
}

func loadList(ctx context.Context, from client.Reader, list client.ObjectList, each func(client.Object)) error {
	if err := from.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list %T: %w", list, err)
	}
	err := meta.EachListItem(list, func(item runtime.Object) error {
		object, ok := item.(client.Object)
		if !ok {
			return fmt.Errorf("%w: %T", errKind, item)
		}
		each(object)
		return nil
	})
	if err != nil {
		return fmt.Errorf("read %T: %w", list, err)
	}
	return nil
}
