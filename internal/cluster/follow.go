package cluster

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"weft.dev/weft/internal/cluster/plan"
)

// Planner computes what to write. It reads objects only from the given reader, writes nothing, and returns the same plan for the same
// objects.
type Planner interface {
	Plan(ctx context.Context, from client.Reader) (Plan, error)
}

// Plan is the changes that a planner wants.
type Plan struct {
	// Create and Update are objects to create and to update; Status are objects whose status to update. They are written in this order, after
	// the deletions.
	Create, Update, Status []client.Object
	// Delete are objects to delete.
	Delete []Deletion
	// Assigns says that the plan assigns a value that must be unique among objects. The plan is then computed again from the API server itself
	// before anything in it is written.
	Assigns bool
	// Problems are reported to the administrator, to be corrected.
	Problems []plan.Problem
	// Again is when to plan again without a change; 0: never.
	Again time.Duration
}

// Deletion is an object to delete, and its owner.
type Deletion struct {
	// Object is deleted only if it has not changed since it was read.
	Object client.Object
	// Owner is the object that Object exists for, with its name and namespace. Object is not deleted while the API server itself has the
	// owner; if the owner has a UID, the UIDs must be equal. Nil: there is no owner.
	Owner client.Object
}

// Following is the configuration of a controller that runs a planner.
type Following struct {
	// Name is the controller's name in logs and metrics.
	Name string
	// Planner computes the plans.
	Planner Planner
	// Given are the kinds that hold assigned values. To confirm a plan, lists of these kinds, and single objects of any kind, are read from
	// the API server itself. Other lists are read from the cache.
	Given []client.Object
	// Reporter reports the plan's problems. Action is the action in their events. Nil: problems are only logged.
	Reporter *Reporter
	Action   string
}

// Follow adds a controller that computes a plan whenever one of the sources reports a change.
func Follow(tools Tools, f Following, sources ...source.TypedSource[Everything]) error {
	r := &follower{tools: tools, Following: f}
	c, err := controller.NewTyped(f.Name, tools.Manager, Options(f.Name, tools.Metrics, r))
	if err != nil {
		return fmt.Errorf("make the controller %s: %w", f.Name, err)
	}
	var errs []error
	for _, from := range sources {
		errs = append(errs, c.Watch(from))
	}
	return errors.Join(errs...)
}

type follower struct {
	Following

	tools Tools
}

// Reconcile implements reconcile.TypedReconciler.
func (f *follower) Reconcile(ctx context.Context, _ Everything) (reconcile.Result, error) {
	wanted, err := f.Planner.Plan(ctx, f.tools.Client)
	if err != nil {
		return Settle(err)
	}
	if wanted.Assigns || len(wanted.Delete) > 0 {
		if wanted, err = f.confirm(ctx, wanted); err != nil {
			return Settle(err)
		}
	}
	f.report(ctx, wanted.Problems)
	result, err := Settle(f.write(ctx, &wanted)...)
	if err == nil && wanted.Again > 0 && (result.RequeueAfter == 0 || wanted.Again < result.RequeueAfter) {
		result.RequeueAfter = wanted.Again
	}
	return result, err
}

// confirm computes a plan again from the API server itself. Additional deletions in it are left to the next plan.
func (f *follower) confirm(ctx context.Context, cached Plan) (Plan, error) {
	live := &confirming{cached: f.tools.Client, live: f.tools.Live}
	for _, kind := range f.Given {
		live.lists = append(live.lists, reflect.TypeOf(kind).Elem().Name()+"List")
	}
	confirmed, err := f.Planner.Plan(ctx, live)
	if err != nil {
		return Plan{}, err
	}
	var deletions []Deletion
	for _, d := range confirmed.Delete {
		if !slices.ContainsFunc(cached.Delete, func(c Deletion) bool { return same(c.Object, d.Object) }) {
			continue
		}
		owned, err := f.owned(ctx, d.Owner)
		if err != nil {
			return Plan{}, err
		}
		if !owned {
			deletions = append(deletions, d)
		}
	}
	confirmed.Delete = deletions
	return confirmed, nil
}

// owned reports whether the API server has the owner.
func (f *follower) owned(ctx context.Context, owner client.Object) (bool, error) {
	if owner == nil {
		return false, nil
	}
	found, ok := owner.DeepCopyObject().(client.Object)
	if !ok {
		return true, fmt.Errorf("%T is not an object", owner)
	}
	if err := f.tools.Live.Get(ctx, client.ObjectKeyFromObject(owner), found); err != nil {
		if client.IgnoreNotFound(err) == nil {
			return false, nil
		}
		return true, fmt.Errorf("read %T %s: %w", owner, owner.GetName(), err)
	}
	return owner.GetUID() == "" || owner.GetUID() == found.GetUID(), nil
}

func same(a, b client.Object) bool {
	return reflect.TypeOf(a) == reflect.TypeOf(b) && a.GetUID() == b.GetUID() && client.ObjectKeyFromObject(a) == client.ObjectKeyFromObject(b)
}

func (f *follower) report(ctx context.Context, problems []plan.Problem) {
	fresh := problems
	if f.Reporter != nil {
		fresh = f.Reporter.Report(problems, f.Action)
	}
	for _, p := range fresh {
		f.tools.Log.WarnContext(ctx, "problem", "message", p.Message, "kind", p.Kind, "namespace", p.Namespace, "name", p.Name, "reason", p.Reason)
	}
}

// write executes a plan. An error with one object does not prevent the writes of the others.
func (f *follower) write(ctx context.Context, wanted *Plan) []error {
	writes := plan.Writes[client.Object]{Create: wanted.Create, Update: wanted.Update}
	for _, d := range wanted.Delete {
		writes.Delete = append(writes.Delete, d.Object)
	}
	errs := []error{Write(ctx, f.tools.Client, f.tools.Log, writes, nil)}
	for _, object := range wanted.Status {
		if err := f.tools.Client.Status().Update(ctx, object); err != nil {
			errs = append(errs, fmt.Errorf("update the status of %T %s: %w", object, object.GetName(), err))
		}
	}
	return errs
}

// confirming reads single objects and some lists from the API server itself, and other lists from the cache.
type confirming struct {
	cached, live client.Reader
	lists        []string
}

// Get implements client.Reader.
func (c *confirming) Get(ctx context.Context, key types.NamespacedName, object client.Object, options ...client.GetOption) error {
	return c.live.Get(ctx, key, object, options...)
}

// List implements client.Reader.
func (c *confirming) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	if !slices.Contains(c.lists, reflect.TypeOf(list).Elem().Name()) {
		return c.cached.List(ctx, list, options...)
	}
	return c.live.List(ctx, list, options...)
}
