package cluster

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovn "weft.dev/weft/api/kubeovn/v1"
	"weft.dev/weft/internal/vpc/cluster/plan"
)

// concurrentWrites limits the requests to the API server at a time.
const concurrentWrites = 8

// reportDelay limits how long statuses that only report are postponed while changes arrive. Each of them would delay the change by one
// request, and most would be outdated by it.
const reportDelay = time.Second

// writer writes the objects of one plan. One object's error does not keep the others from being written. The planner gets what was written
// before the watch reports it.
type writer struct {
	*reconciler
	plan *plan.Plan

	// mu guards what follows, and the reconciler. It is not held during a request.
	mu   sync.Mutex
	errs []error
	// versions are those of objects written in this plan: an object may be written twice, for its finalizers and its status.
	versions map[key]string
}

// reportQuiet is for how long nothing must have changed before statuses that only report are written: objects that are applied together arrive
// one by one, and a report between two of them delays both.
const reportQuiet = 50 * time.Millisecond

// write writes the plan's objects: first addresses, then finalizers, workloads and statuses. Within each of these steps the writes are
// concurrent. Statuses that only report are written last.
func (r *reconciler) write(ctx context.Context, p *plan.Plan) []error {
	w := &writer{reconciler: r, plan: p, versions: map[key]string{}}
	c := r.tools.Client
	each(p.Delete, func(ip *kubeovn.IP) { w.remove(ctx, ip) })
	each(p.Create, func(ip *kubeovn.IP) { w.put(ctx, "create", ip, func() error { return c.Create(ctx, ip) }) })
	update := func(object plan.Object) bool {
		return w.put(ctx, "update", object, func() error { return c.Update(ctx, object) })
	}
	finalizers := slices.Clone(p.Updates)
	for _, v := range p.Vpcs {
		finalizers = append(finalizers, v)
	}
	for _, s := range p.Subnets {
		finalizers = append(finalizers, s)
	}
	each(finalizers, func(object plan.Object) {
		if !update(object) {
			w.withhold(object)
		}
	})
	each(p.DeleteWorkloads, func(set *appsv1.StatefulSet) { w.remove(ctx, set) })
	each(p.UpdateWorkloads, func(set *appsv1.StatefulSet) { update(set) })
	each(p.CreateWorkloads, func(set *appsv1.StatefulSet) {
		w.put(ctx, "create", set, func() error { return c.Create(ctx, set) })
	})
	statuses := p.Statuses
	for _, v := range p.VpcStatus {
		statuses = append(statuses, v)
	}
	for _, s := range p.SubnetStatus {
		statuses = append(statuses, s)
	}
	status := func(object plan.Object) {
		w.put(ctx, "update the status of", object, func() error { return c.Status().Update(ctx, object) })
	}
	reports := slices.Clone(statuses)
	each(slices.DeleteFunc(statuses, p.Reports), status)
	w.reports(slices.DeleteFunc(reports, func(object plan.Object) bool { return !p.Reports(object) }), status)
	return w.errs
}

// reports writes statuses that only report. As long as other changes wait, or the last one is recent, the rest is postponed: the next plan
// reports, and takes the changes into account. Reports that have been postponed for reportDelay are written in any case.
func (w *writer) reports(statuses []plan.Object, write func(plan.Object)) {
	overdue := !w.postponed.IsZero() && time.Since(w.postponed) > reportDelay
	left := false
	each(statuses, func(object plan.Object) {
		if overdue || !w.postpone(object) {
			write(object)
			return
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		left = true
	})
	switch {
	case !left:
		w.postponed = time.Time{}
	case w.postponed.IsZero():
		w.postponed = time.Now()
	}
}

// postpone leaves a report to the next plan if changes wait, or the last one is recent. Reconcile requests that plan.
func (w *writer) postpone(object plan.Object) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.pending() && time.Since(w.changed) >= reportQuiet {
		return false
	}
	w.planner.Postpone(object)
	return true
}

// each calls do for each object, for some concurrently.
func each[T any](list []T, do func(T)) {
	var group errgroup.Group
	group.SetLimit(concurrentWrites)
	for _, object := range list {
		group.Go(func() error {
			do(object)
			return nil
		})
	}
	_ = group.Wait() // do returns no error
}

// withhold removes from the plan what must not be written because the object was not.
func (w *writer) withhold(object plan.Object) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.plan.Withhold(object)
}

// put writes an object, and reports whether it was written.
func (w *writer) put(ctx context.Context, verb string, object client.Object, call func() error) bool {
	w.mu.Lock()
	if version := w.versions[keyOf(object)]; version != "" {
		object.SetResourceVersion(version)
	}
	w.mu.Unlock()
	err := call()
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		w.failed(object, fmt.Errorf("%s %T %s: %w", verb, object, object.GetName(), err))
		return false
	}
	w.log.InfoContext(ctx, "wrote", "verb", verb, "object", fmt.Sprintf("%T/%s", object, object.GetName()))
	w.versions[keyOf(object)] = object.GetResourceVersion()
	if object.GetDeletionTimestamp() != nil && len(object.GetFinalizers()) == 0 {
		w.handOver(object, true)
		return true
	}
	w.knows(object)
	return true
}

// remove deletes an object, if it is unchanged since it was read.
func (w *writer) remove(ctx context.Context, object client.Object) {
	err := w.tools.Client.Delete(ctx, object, client.Preconditions{UID: new(object.GetUID()), ResourceVersion: new(object.GetResourceVersion())})
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil && !apierrors.IsNotFound(err) {
		w.failed(object, fmt.Errorf("delete %T %s: %w", object, object.GetName(), err))
		return
	}
	w.log.InfoContext(ctx, "wrote", "verb", "delete", "object", fmt.Sprintf("%T/%s", object, object.GetName()))
	if _, ip := object.(*kubeovn.IP); ip {
		w.handOver(object, true)
	}
}

// failed makes the next plan compute again what the object depends on.
func (w *writer) failed(object client.Object, err error) {
	w.errs = append(w.errs, err)
	w.planner.Retry(object)
}
