package cluster

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
	"weft.dev/weft/internal/vpc/cluster/plan"
)

// writer writes the objects of one plan. One object's error does not keep the others from being written. The planner gets what was written
// before the watch reports it.
type writer struct {
	*reconciler
	errs []error
	// versions are those of objects written in this plan: an object may be written twice, for its finalizers and its status.
	versions map[key]string
}

// write writes the plan's objects.
func (r *reconciler) write(ctx context.Context, p *plan.Plan) []error {
	w := &writer{reconciler: r, versions: map[key]string{}}
	c := r.tools.Client
	for _, ip := range p.Delete {
		w.remove(ctx, ip)
	}
	for _, ip := range p.Create {
		w.put(ctx, "create", ip, func() error { return c.Create(ctx, ip) })
	}
	for _, v := range p.Vpcs {
		w.put(ctx, "update", v, func() error { return c.Update(ctx, v) })
	}
	for _, s := range p.Subnets {
		w.put(ctx, "update", s, func() error { return c.Update(ctx, s) })
	}
	for _, object := range p.Updates {
		w.put(ctx, "update", object, func() error { return c.Update(ctx, object) })
	}
	for _, set := range p.DeleteWorkloads {
		w.remove(ctx, set)
	}
	for _, set := range p.UpdateWorkloads {
		w.put(ctx, "update", set, func() error { return c.Update(ctx, set) })
	}
	for _, set := range p.CreateWorkloads {
		w.put(ctx, "create", set, func() error { return c.Create(ctx, set) })
	}
	statuses := p.Statuses
	for _, v := range p.VpcStatus {
		statuses = append(statuses, v)
	}
	for _, s := range p.SubnetStatus {
		statuses = append(statuses, s)
	}
	for _, object := range statuses {
		w.put(ctx, "update the status of", object, func() error { return c.Status().Update(ctx, object) })
	}
	return w.errs
}

// put writes an object.
func (w *writer) put(ctx context.Context, verb string, object client.Object, call func() error) {
	if version := w.versions[keyOf(object)]; version != "" {
		object.SetResourceVersion(version)
	}
	if err := call(); err != nil {
		w.failed(object, fmt.Errorf("%s %T %s: %w", verb, object, object.GetName(), err))
		return
	}
	w.log.InfoContext(ctx, "wrote", "verb", verb, "object", fmt.Sprintf("%T/%s", object, object.GetName()))
	w.versions[keyOf(object)] = object.GetResourceVersion()
	if object.GetDeletionTimestamp() != nil && len(object.GetFinalizers()) == 0 {
		w.tell(object, true)
		return
	}
	w.knows(object)
}

// remove deletes an object, if it is unchanged since it was read.
func (w *writer) remove(ctx context.Context, object client.Object) {
	err := w.tools.Client.Delete(ctx, object, client.Preconditions{UID: new(object.GetUID()), ResourceVersion: new(object.GetResourceVersion())})
	if err != nil && !apierrors.IsNotFound(err) {
		w.failed(object, fmt.Errorf("delete %T %s: %w", object, object.GetName(), err))
		return
	}
	w.log.InfoContext(ctx, "wrote", "verb", "delete", "object", fmt.Sprintf("%T/%s", object, object.GetName()))
	if _, ip := object.(*kubeovn.IP); ip {
		w.tell(object, true)
	}
}

// failed makes the next plan compute again what the object depends on.
func (w *writer) failed(object client.Object, err error) {
	w.errs = append(w.errs, err)
	w.planner.Retry(object)
}
