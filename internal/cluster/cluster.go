// Package cluster is what the controller's parts have in common: each network adds one Part. A part watches objects, plans from all of
// them, and writes what differs. This package knows no network.
//
// A plan is made from the cache. One that gives something out or deletes something is made again from what the API server itself
// says, because the cache may be behind; only what both plans delete is deleted (Follow).
package cluster

import (
	"fmt"
	"log/slog"
	"math/rand/v2"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"weft.dev/weft/internal/metrics"
)

// Part is a network's part of the controller.
type Part struct {
	// Name is the network's.
	Name string
	// Schemes register the kinds of objects that the part uses, beyond those of Kubernetes.
	Schemes []func(*runtime.Scheme) error
	// Objects are what the part reads and writes at the API server: the chart's rights, and what the cache keeps, follow from them.
	Objects []Object
	// SetUp adds the part's controllers to the manager. It starts nothing.
	SetUp func(Tools) error
}

// Object is one resource that a part uses.
type Object struct {
	// Group and Resource name the resource, such as "" and "nodes". A subresource follows a slash: hostsubnets/status.
	Group, Resource string
	// Verbs are what the part does with it, as in RBAC.
	Verbs []string
	// Kind is an empty object of the resource. Nil: the cache keeps it whole, or it is not cached.
	Kind client.Object
	// Keep removes what no part needs from an object before it is cached. Nil: all of it is kept. Of a kind that several parts
	// cache, an object is kept whole unless one of them has a Keep; two with a Keep are an error.
	Keep cache.TransformFunc
	// Label and Field select the objects that are cached. Nil: all.
	Label labels.Selector
	Field fields.Selector
}

// Tools are what a part's controllers are made of.
type Tools struct {
	// Manager starts controllers once the replica leads, and has the cache.
	Manager manager.Manager
	// Client reads from the cache, and counts its writes.
	Client client.Client
	// Live reads from the API server itself.
	Live client.Reader
	// Events sends events about objects.
	Events events.EventRecorder
	// Log is where the part logs.
	Log *slog.Logger
	// Metrics are the controller's.
	Metrics *metrics.Controller
	// Random chooses where any choice is right.
	Random *rand.Rand
	// Readiness knows which objects have been read.
	Readiness *Readiness
}

// NewTools returns the tools of a manager's parts.
func NewTools(mgr manager.Manager, ready *Readiness, log *slog.Logger, random *rand.Rand) Tools {
	return Tools{
		Manager: mgr, Client: &counted{mgr.GetClient(), ready.metrics}, Live: mgr.GetAPIReader(),
		Events: mgr.GetEventRecorder("weft-controller"), Log: log, Metrics: ready.metrics, Random: random, Readiness: ready,
	}
}

// Reporter returns a reporter of problems for a controller of that name. apiVersion is that of the part's own objects.
func (t Tools) Reporter(name, apiVersion string) *Reporter {
	return NewReporter(name, apiVersion, t.Events, t.Metrics)
}

// Reading returns a source that the replica's readiness waits for.
func (t Tools) Reading(kind string, from source.TypedSyncingSource[Everything]) source.TypedSource[Everything] {
	return t.Readiness.Reading(kind, from)
}

// SetUp sets up all parts.
func SetUp(parts []Part, tools Tools) error {
	for _, part := range parts {
		if err := part.SetUp(tools); err != nil {
			return fmt.Errorf("set up the controller of network %s: %w", part.Name, err)
		}
	}
	return nil
}

// AddToScheme registers the kinds of all parts.
func AddToScheme(parts []Part, scheme *runtime.Scheme) error {
	for _, part := range parts {
		for _, add := range part.Schemes {
			if err := add(scheme); err != nil {
				return fmt.Errorf("register the objects of network %s: %w", part.Name, err)
			}
		}
	}
	return nil
}

// Cached returns what the cache keeps of the parts' objects: the union of what they select.
func Cached(parts []Part, scheme *runtime.Scheme) (map[client.Object]ctrlcache.ByObject, error) {
	type kept struct {
		object Object
		part   string
	}
	byKind := map[string]kept{}
	for _, part := range parts {
		for _, object := range part.Objects {
			if object.Kind == nil {
				continue
			}
			kinds, _, err := scheme.ObjectKinds(object.Kind)
			if err != nil {
				return nil, fmt.Errorf("network %s: resource %s: %w", part.Name, object.Resource, err)
			}
			kind := kinds[0].String()
			before, there := byKind[kind]
			if !there {
				byKind[kind] = kept{object, part.Name}
				continue
			}
			if before.object.Keep != nil && object.Keep != nil {
				return nil, fmt.Errorf("networks %s and %s: each says what to keep of %s: one function must serve both", before.part, part.Name, kind)
			}
			if before.object.Keep != nil {
				object.Keep = before.object.Keep
			}
			if selector(before.object.Label) != selector(object.Label) || fieldSelector(before.object.Field) != fieldSelector(object.Field) {
				object.Label, object.Field = nil, nil // one of them needs more than the other selects
			}
			byKind[kind] = kept{object, part.Name}
		}
	}
	cached := map[client.Object]ctrlcache.ByObject{}
	for _, k := range byKind {
		if k.object.Keep != nil || k.object.Label != nil || k.object.Field != nil {
			cached[k.object.Kind] = ctrlcache.ByObject{Transform: k.object.Keep, Label: k.object.Label, Field: k.object.Field}
		}
	}
	return cached, nil
}

func selector(s labels.Selector) string {
	if s == nil {
		return ""
	}
	return s.String()
}

func fieldSelector(s fields.Selector) string {
	if s == nil {
		return ""
	}
	return s.String()
}
