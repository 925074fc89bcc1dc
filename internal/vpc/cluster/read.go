package cluster

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
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

// version is that of an object which this replica wrote, or read from the API server itself.
type version struct {
	uid      types.UID
	resource string
}

// news is what the watches have said since the last plan.
type news struct {
	mu      sync.Mutex
	changed map[key]client.Object // the last state of each object
	deleted map[key]bool          // the object is gone since then
	doubt   bool                  // everything is to be read again
	wanted  bool                  // a replica that leads has read everything; before that, nothing needs to be noted
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

// take returns what is new, and begins anew. What comes from then on is noted.
func (n *news) take() (changed map[key]client.Object, deleted map[key]bool, doubt bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	changed, deleted, doubt = n.changed, n.deleted, n.doubt
	n.changed, n.deleted, n.doubt, n.wanted = nil, nil, false, true
	return changed, deleted, doubt
}

// heard has objects noted as they change, and asks for a plan. What comes again without a change, as each Subnet does from time to time, has
// everything read anew.
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
				n.doubt = true
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

// learn tells the planner what is new.
func (r *reconciler) learn(ctx context.Context) error {
	changed, deleted, doubt := r.news.take()
	if doubt || !r.loaded {
		r.loaded = false
		if err := r.load(ctx); err != nil {
			return err
		}
		r.loaded = true
		return nil
	}
	for at, object := range changed {
		if r.outdated(at, object, deleted[at]) {
			continue
		}
		delete(r.written, at)
		r.tell(object, deleted[at])
	}
	return nil
}

// outdated reports whether the watch says of an object what was so before this replica wrote it, or read it from the API server itself.
func (r *reconciler) outdated(at key, object client.Object, deleted bool) bool {
	known, there := r.written[at]
	if !there {
		return false
	}
	if deleted {
		return object.GetUID() != known.uid
	}
	order, err := resourceversion.CompareResourceVersion(object.GetResourceVersion(), known.resource)
	return err == nil && order < 0
}

// tell tells the planner of one object.
func (r *reconciler) tell(object client.Object, deleted bool) {
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
			return // another's
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

// knows notes that this replica wrote an object, or read it from the API server itself.
func (r *reconciler) knows(object client.Object) {
	r.written[keyOf(object)] = version{object.GetUID(), object.GetResourceVersion()}
	r.tell(object, false)
}

// load tells a new planner of all objects: those in which things are given out as the API server itself has them, the others as the cache has
// them.
func (r *reconciler) load(ctx context.Context) error {
	r.planner, r.config, r.written = plan.NewPlanner(), map[string]map[string]string{}, map[key]version{}
	for _, list := range []client.ObjectList{
		&kubeovn.VpcList{}, &kubeovn.SubnetList{}, &kubeovn.VpcNatGatewayList{}, &kubeovn.IPList{}, &kubeovn.IptablesEIPList{},
	} {
		if err := r.loadList(ctx, r.tools.Live, list, r.knows); err != nil {
			return err
		}
	}
	for _, list := range []client.ObjectList{
		&corev1.NamespaceList{}, &networkingv1.NetworkPolicyList{}, &corev1.PodList{}, &kubeovn.IptablesSnatRuleList{}, &kubeovn.IptablesDnatRuleList{}, &kubeovn.IptablesFIPRuleList{},
		&appsv1.StatefulSetList{}, &corev1.ConfigMapList{}, nat.DefinitionList(),
	} {
		if err := r.loadList(ctx, r.tools.Client, list, func(object client.Object) { r.tell(object, false) }); err != nil {
			return err
		}
	}
	return nil
}

var errKind = errors.New("not an object")

func (r *reconciler) loadList(ctx context.Context, from client.Reader, list client.ObjectList, each func(client.Object)) error {
	// The planner keeps the objects: those of the cache are its own.
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

// confirm asks the API server itself before anything is taken: for the pods of IP objects that are to be deleted, and for the gateways and the
// ConfigMaps of workloads that are. It reports whether the cache was behind; the planner then knows better.
func (r *reconciler) confirm(ctx context.Context, p *plan.Plan) (behind bool, err error) {
	for _, ip := range p.Delete {
		if ip.Spec.Namespace == "" || ip.Spec.PodName == "" {
			continue // no pod has it
		}
		pod := &corev1.Pod{}
		err := r.tools.Live.Get(ctx, client.ObjectKey{Namespace: ip.Spec.Namespace, Name: ip.Spec.PodName}, pod)
		if client.IgnoreNotFound(err) != nil {
			return false, fmt.Errorf("confirm that the pod of IP %s is gone: %w", ip.Name, err)
		}
		if err == nil && plan.Needs(pod, ip) {
			r.knows(pod)
			behind = true
		}
	}
	if len(p.DeleteWorkloads) == 0 {
		return behind, nil
	}
	workloads, err := r.confirmWorkloads(ctx, p)
	return behind || workloads, err
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
