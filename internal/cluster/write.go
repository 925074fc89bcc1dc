package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"weft.dev/weft/internal/cluster/plan"
	"weft.dev/weft/internal/metrics"
)

// Again is the delay before a plan is computed again after a conflict. It gives the watch time to report the change.
const Again = 200 * time.Millisecond

// Write executes writes. An error with one object does not prevent the writes of the others. done, if not nil, is called with each object
// that was written.
func Write[T client.Object](ctx context.Context, c client.Client, log *slog.Logger, writes plan.Writes[T], done func(T)) error {
	var errs []error
	do := func(verb string, obj T, call func() error) {
		if err := call(); err != nil {
			errs = append(errs, fmt.Errorf("%s %T %s: %w", verb, obj, obj.GetName(), err))
			return
		}
		log.InfoContext(ctx, "wrote", "verb", verb, "object", fmt.Sprintf("%T/%s", obj, obj.GetName()))
		if done != nil {
			done(obj)
		}
	}
	for _, obj := range writes.Delete {
		do("delete", obj, func() error {
			return c.Delete(ctx, obj, client.Preconditions{UID: new(obj.GetUID()), ResourceVersion: new(obj.GetResourceVersion())})
		})
	}
	for _, obj := range writes.Update {
		do("update", obj, func() error { return c.Update(ctx, obj) })
	}
	for _, obj := range writes.Create {
		do("create", obj, func() error { return c.Create(ctx, obj) })
	}
	return errors.Join(errs...)
}

// Settle turns the errors of a run into its result. A conflict with a change, a creation or a deletion at the same time is no error: the
// next run sees the new state.
func Settle(errs ...error) (reconcile.Result, error) {
	var left []error
	var repeat bool
	for _, err := range flatten(errors.Join(errs...)) {
		if Raced(err) {
			repeat = true
			continue
		}
		left = append(left, err)
	}
	if err := errors.Join(left...); err != nil {
		return reconcile.Result{}, err
	}
	if repeat {
		return reconcile.Result{RequeueAfter: Again}, nil
	}
	return reconcile.Result{}, nil
}

// flatten splits joined errors.
func flatten(err error) []error {
	if err == nil {
		return nil
	}
	joined, ok := err.(interface{ Unwrap() []error }) //nolint:errorlint // only what errors.Join returned is taken apart
	if !ok {
		return []error{err}
	}
	var all []error
	for _, e := range joined.Unwrap() {
		all = append(all, flatten(e)...)
	}
	return all
}

// Everything is the only request of a controller here: a plan is computed from all objects.
type Everything struct{}

// Enqueue requests a plan for every event, whatever its object.
func Enqueue[T client.Object]() handler.TypedEventHandler[T, Everything] {
	return handler.TypedEnqueueRequestsFromMapFunc(func(context.Context, T) []Everything { return []Everything{{}} })
}

// Options returns the options that all controllers share: one worker, so that plans run one after another. Runs are measured under the
// name.
func Options(name string, counters *metrics.Controller, r reconcile.TypedReconciler[Everything]) controller.TypedOptions[Everything] {
	const slowest = time.Minute // new events do not wait that long
	return controller.TypedOptions[Everything]{
		Reconciler:  &timed{name, counters, r},
		RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[Everything](Again, slowest),
	}
}

// Exists reads an object from the API server itself, and reports whether it exists.
func Exists(ctx context.Context, live client.Reader, obj client.Object, name string) (bool, error) {
	err := live.Get(ctx, client.ObjectKey{Name: name}, obj)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read %T %s: %w", obj, name, err)
	}
	return true, nil
}

// Pages reads a list from the API server itself, in pages that it can serve quickly.
func Pages[L client.ObjectList](ctx context.Context, live client.Reader, newList func() L, each func(L)) error {
	const size = 500
	for next := ""; ; {
		list := newList()
		if err := live.List(ctx, list, client.Limit(size), client.Continue(next)); err != nil {
			return fmt.Errorf("list %T: %w", list, err)
		}
		each(list)
		if next = list.GetContinue(); next == "" {
			return nil
		}
	}
}

// Within returns the objects whose names are also in confirmed. What only the second plan deletes is left to the next plan, which is
// confirmed again.
func Within[T client.Object](objects, confirmed []T) []T {
	return slices.DeleteFunc(objects, func(obj T) bool {
		return !slices.ContainsFunc(confirmed, func(c T) bool { return c.GetName() == obj.GetName() })
	})
}
