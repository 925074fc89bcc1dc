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
// request, and most would be outdated by it. kubectl applies a hundred objects in this time on a small machine: reports between them would
// double the API server's work, and with it the time.
const reportDelay = 3 * time.Second

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

// maxFreed limits the IP objects that are deleted for one plan.
const maxFreed = 100

// freeing is how far the deletion of former pods' IP objects is.
type freeing struct {
	left bool   // the last round has left some to the next one
	last string // the name of the one that was deleted last
}

// write writes the plan's objects in two steps, within each of which the writes are concurrent: finalizers, workloads, and addresses that need
// no finalizer; then the other addresses, and statuses that assign. IP objects of former pods are deleted after them: nothing in the plan needs
// that, unless a new one gets the name. Statuses that only report are written last. A workload needs no finalizer of its gateway: a workload
// without a gateway is deleted.
func (r *reconciler) write(ctx context.Context, p *plan.Plan) []error {
	w := &writer{reconciler: r, plan: p, versions: map[key]string{}}
	replaced, freed := w.removals()
	each(replaced, func(ip *kubeovn.IP) { w.remove(ctx, ip) })
	awaiting, free := p.Awaiting()
	first := append(w.workloads(ctx), w.creations(ctx, free)...)
	for _, object := range slices.Concat(objectsOf(p.Vpcs), objectsOf(p.Subnets), p.Updates) {
		first = append(first, func() {
			if !w.update(ctx, object) {
				w.withhold(object)
			}
		})
	}
	run(first)
	assigning, reports := w.statuses()
	then := w.creations(ctx, w.left(awaiting))
	for _, object := range assigning {
		then = append(then, func() { w.status(ctx, object) })
	}
	run(then)
	w.free(ctx, freed)
	w.reports(reports, func(object plan.Object) { w.status(ctx, object) })
	return w.errs
}

// removals divides the IP objects to be deleted: replaced are those whose names new ones get, freed are the others. These begin with the one
// after the last one that was deleted, so that one that cannot be deleted does not keep the others.
func (w *writer) removals() (replaced, freed []*kubeovn.IP) {
	created := make(map[string]struct{}, len(w.plan.Create))
	for _, ip := range w.plan.Create {
		created[ip.Name] = struct{}{}
	}
	var before []*kubeovn.IP
	for _, ip := range w.plan.Delete {
		_, replaces := created[ip.Name]
		switch {
		case replaces:
			replaced = append(replaced, ip)
		case ip.Name <= w.freeing.last:
			before = append(before, ip)
		default:
			freed = append(freed, ip)
		}
	}
	return replaced, append(freed, before...)
}

// free deletes IP objects, the first maxFreed of them. The next plan deletes the others: however many pods of one tenant end at a time, an
// address of another one does not wait for all of their deletions, each of which is a request.
func (w *writer) free(ctx context.Context, ips []*kubeovn.IP) {
	later := ips[min(len(ips), maxFreed):]
	ips = ips[:len(ips)-len(later)]
	before := len(w.errs)
	each(ips, func(ip *kubeovn.IP) { w.remove(ctx, ip) })
	for _, ip := range later {
		w.planner.Retry(ip)
	}
	w.freeing.left = len(later) > 0 && len(w.errs)-before < len(ips) // if none could be deleted, the delay after an error applies
	if len(ips) > 0 {
		w.freeing.last = ips[len(ips)-1].Name
	}
}

// run makes the writes, some concurrently.
func run(writes []func()) { each(writes, func(write func()) { write() }) }

// left returns those of the addresses that are not withheld.
func (w *writer) left(addresses []*kubeovn.IP) []*kubeovn.IP {
	return slices.DeleteFunc(addresses, func(ip *kubeovn.IP) bool { return !slices.Contains(w.plan.Create, ip) })
}

// creations are the writes that create addresses.
func (w *writer) creations(ctx context.Context, addresses []*kubeovn.IP) []func() {
	writes := make([]func(), 0, len(addresses))
	for _, ip := range addresses {
		writes = append(writes, func() { w.create(ctx, ip) })
	}
	return writes
}

// workloads are the writes of the gateways' StatefulSets.
func (w *writer) workloads(ctx context.Context) (writes []func()) {
	for _, set := range w.plan.DeleteWorkloads {
		writes = append(writes, func() { w.remove(ctx, set) })
	}
	for _, set := range w.plan.UpdateWorkloads {
		writes = append(writes, func() { w.update(ctx, set) })
	}
	for _, set := range w.plan.CreateWorkloads {
		writes = append(writes, func() { w.create(ctx, set) })
	}
	return writes
}

// statuses returns the objects whose status changes: those to which the status assigns something, and those on which it only reports.
func (w *writer) statuses() (assigning, reports []plan.Object) {
	for _, object := range slices.Concat(w.plan.Statuses, objectsOf(w.plan.VpcStatus), objectsOf(w.plan.SubnetStatus)) {
		if w.plan.Reports(object) {
			reports = append(reports, object)
		} else {
			assigning = append(assigning, object)
		}
	}
	return assigning, reports
}

// objectsOf returns a list of one kind of objects as one of any.
func objectsOf[T plan.Object](list []T) []plan.Object {
	all := make([]plan.Object, 0, len(list))
	for _, object := range list {
		all = append(all, object)
	}
	return all
}

func (w *writer) create(ctx context.Context, object plan.Object) {
	w.put(ctx, "create", object, func() error { return w.tools.Client.Create(ctx, object) })
}

func (w *writer) update(ctx context.Context, object plan.Object) bool {
	return w.put(ctx, "update", object, func() error { return w.tools.Client.Update(ctx, object) })
}

func (w *writer) status(ctx context.Context, object plan.Object) {
	w.put(ctx, "update the status of", object, func() error { return w.tools.Client.Status().Update(ctx, object) })
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
	w.unreported = left
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
	w.again(w.plan, object)
}

// again removes from the plan what must not be written because the object was not, and has it planned again.
func (r *reconciler) again(p *plan.Plan, object plan.Object) {
	for _, ip := range p.Withhold(object) {
		r.planner.Retry(ip)
	}
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
	if _, workload := object.(*appsv1.StatefulSet); workload {
		w.planner.RefuseWorkload(object.GetName(), "")
	}
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
	if _, workload := object.(*appsv1.StatefulSet); workload && (apierrors.IsInvalid(err) || apierrors.IsForbidden(err)) {
		w.planner.RefuseWorkload(object.GetName(), err.Error())
	}
	w.planner.Retry(object)
}
