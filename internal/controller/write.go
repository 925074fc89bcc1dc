package controller

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

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/internal/clusternetwork"
	"weft.dev/weft/internal/controller/plan"
)

// again is how soon a plan is made again when the objects had changed meanwhile: the watch may take a moment.
const again = 200 * time.Millisecond

// write carries out a plan. One object's error does not keep the others from being written. What was written is told to
// done, unless that is nil.
func write[T client.Object](ctx context.Context, c client.Client, log *slog.Logger, writes plan.Writes[T], done func(T)) error {
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

// settle turns the errors of a round into its result. Objects that changed, came or went meanwhile are no errors: the
// next round sees them.
func settle(errs ...error) (reconcile.Result, error) {
	var left []error
	var repeat bool
	for _, err := range flatten(errors.Join(errs...)) {
		if raced(err) {
			repeat = true
			continue
		}
		left = append(left, err)
	}
	if err := errors.Join(left...); err != nil {
		return reconcile.Result{}, err
	}
	if repeat {
		return reconcile.Result{RequeueAfter: again}, nil
	}
	return reconcile.Result{}, nil
}

// flatten takes joined errors apart.
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

// everything is the one thing that a controller here reconciles: a plan is made of all objects.
type everything struct{}

// enqueue asks for a plan, whatever the object is.
func enqueue[T client.Object]() handler.TypedEventHandler[T, everything] {
	return handler.TypedEnqueueRequestsFromMapFunc(func(context.Context, T) []everything { return []everything{{}} })
}

// controllerOptions are the same for all: one worker, so that plans follow each other.
func controllerOptions(r reconcile.TypedReconciler[everything]) controller.TypedOptions[everything] {
	const slowest = time.Minute // events that come meanwhile do not wait for it
	return controller.TypedOptions[everything]{
		Reconciler:  r,
		RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[everything](again, slowest),
	}
}

// readNetwork returns the ClusterNetwork that is used, nil where there is none, and what it describes, nil with an
// error where it cannot be used.
func readNetwork(ctx context.Context, c client.Reader) (*networkv1.ClusterNetwork, *clusternetwork.Config, error) {
	network := &networkv1.ClusterNetwork{}
	if err := c.Get(ctx, client.ObjectKey{Name: networkv1.ClusterNetworkDefault}, network); err != nil {
		if apierrors.IsNotFound(err) {
			return nil, nil, nil
		}
		return nil, nil, fmt.Errorf("read ClusterNetwork %s: %w", networkv1.ClusterNetworkDefault, err)
	}
	parsed, err := clusternetwork.Parse(network)
	if err != nil {
		return network, nil, &invalidError{err}
	}
	return network, &parsed, nil
}

// invalidError is the error of a ClusterNetwork that cannot be used, as opposed to one that cannot be read.
type invalidError struct{ error }

func (e *invalidError) Unwrap() error { return e.error }

// exists asks the API server itself for an object, and reports whether there is one.
func exists(ctx context.Context, live client.Reader, obj client.Object, name string) (bool, error) {
	err := live.Get(ctx, client.ObjectKey{Name: name}, obj)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read %T %s: %w", obj, name, err)
	}
	return true, nil
}

// pages reads a list from the API server itself, in pieces that it can serve quickly.
func pages[L client.ObjectList](ctx context.Context, live client.Reader, newList func() L, each func(L)) error {
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

// within returns the objects whose names are among the confirmed ones: what a second look would delete besides is left
// to the next plan, which asks for it first.
func within[T client.Object](objects, confirmed []T) []T {
	return slices.DeleteFunc(objects, func(obj T) bool {
		return !slices.ContainsFunc(confirmed, func(c T) bool { return c.GetName() == obj.GetName() })
	})
}
