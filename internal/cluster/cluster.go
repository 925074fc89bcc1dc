// Package cluster has the code that the controller's parts share. Each network adds one Part. A part watches objects, computes a plan from
// all of them, and writes the differences. This package knows no network.
//
// A plan is computed from the cache. A plan that assigns or deletes something is computed a second time from the API server itself, because
// the cache may be outdated; only objects that both plans delete are deleted (Follow).
package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"

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
	// Name is the network's name.
	Name string
	// Schemes register the kinds of objects that the part uses, beyond those of Kubernetes.
	Schemes []func(*runtime.Scheme) error
	// Objects are what the part reads and writes at the API server. The chart's RBAC rules and the content of the cache follow from them.
	Objects []Object
	// Configured reports, from the API server itself, whether the cluster is configured for the network. Nil: the network never serves all
	// pods, so the other parts need not check.
	Configured func(ctx context.Context, live client.Reader) (bool, error)
	// SetUp adds the part's controllers to the manager. It does not start them.
	SetUp func(Tools) error
}

// Object is one resource that a part uses.
type Object struct {
	// Group and Resource name the resource, such as "" and "nodes". A subresource is written after a slash: hostsubnets/status.
	Group, Resource string
	// Verbs are the RBAC verbs that the part uses.
	Verbs []string
	// Kind is an empty object of the resource. Nil: the cache keeps the objects whole, or does not have them.
	Kind client.Object
	// Keep removes the fields that no part needs from an object before it is cached. Nil: this part removes nothing. If several parts cache a
	// kind, only one of them may have it, and it has to keep what the others need.
	Keep cache.TransformFunc
	// Pods says which fields of Pods the part reads. The cache keeps the fields of all parts. Pods are cached whole if a part has neither this
	// nor Keep.
	Pods *PodFields
	// Label and Field select the objects to cache. Nil: all.
	Label labels.Selector
	Field fields.Selector
	// Namespace limits the cache to one namespace; empty: all. The right is then granted by a Role.
	Namespace string
}

// Tools are what a part uses to set up its controllers.
type Tools struct {
	// Manager has the cache, and starts controllers once the replica is the leader.
	Manager manager.Manager
	// Client reads from the cache, and counts its writes in the network's metrics.
	Client client.Client
	// Live reads from the API server itself.
	Live client.Reader
	// Events sends events about objects.
	Events events.EventRecorder
	// Log is the part's logger.
	Log *slog.Logger
	// Metrics are the controller's metrics, with the network as label.
	Metrics *metrics.Controller
	// Random chooses where any choice is correct.
	Random *rand.Rand
	// Readiness tracks which kinds of objects have been read.
	Readiness *Readiness
	// Defaults says that a part may create the object that configures its network if no network is configured.
	Defaults bool

	others []Part
}

// Elsewhere reports whether the cluster is configured for a network other than the part's own.
func (t Tools) Elsewhere(ctx context.Context) (bool, error) {
	for _, part := range t.others {
		if part.Configured == nil {
			continue
		}
		configured, err := part.Configured(ctx, t.Live)
		if err != nil {
			return false, fmt.Errorf("whether network %s is configured: %w", part.Name, err)
		}
		if configured {
			return true, nil
		}
	}
	return false, nil
}

// NewTools returns the tools of a manager's parts.
func NewTools(mgr manager.Manager, ready *Readiness, log *slog.Logger, random *rand.Rand) Tools {
	return Tools{
		Manager: mgr, Client: &counted{mgr.GetClient(), ready.metrics}, Live: mgr.GetAPIReader(),
		Events: mgr.GetEventRecorder("weft-controller"), Log: log, Metrics: ready.metrics, Random: random, Readiness: ready,
	}
}

// Reporter returns a reporter of problems for the controller with the given name. apiVersion is the version of the part's own objects.
func (t Tools) Reporter(name, apiVersion string) *Reporter {
	return NewReporter(name, apiVersion, t.Events, t.Metrics)
}

// Reading returns a source that the replica's readiness waits for.
func (t Tools) Reading(kind string, from source.TypedSyncingSource[Everything]) source.TypedSource[Everything] {
	return t.Readiness.Reading(kind, from)
}

// SetUp sets up all parts.
func SetUp(parts []Part, tools Tools) error {
	all := tools.Metrics
	for i, part := range parts {
		tools.others = slices.Delete(slices.Clone(parts), i, i+1)
		tools.Metrics = all.For(part.Name)
		tools.Client = &counted{tools.Manager.GetClient(), tools.Metrics}
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

// Cached returns the cache options for the parts' objects: the union of their selections.
func Cached(parts []Part, scheme *runtime.Scheme) (map[client.Object]ctrlcache.ByObject, error) {
	byKind, err := joined(parts, scheme)
	if err != nil {
		return nil, err
	}
	options := map[client.Object]ctrlcache.ByObject{}
	for _, c := range byKind {
		if c.object.Pods != nil {
			c.object.Keep = c.object.Pods.keep
		}
		if c.object.Keep != nil || c.object.Label != nil || c.object.Field != nil || c.object.Namespace != "" {
			by := ctrlcache.ByObject{Transform: c.object.Keep, Label: c.object.Label, Field: c.object.Field}
			if c.object.Namespace != "" {
				by.Namespaces = map[string]ctrlcache.Config{c.object.Namespace: {}}
			}
			options[c.object.Kind] = by
		}
	}
	return options, nil
}

// joined returns what is cached of each kind, over all parts.
func joined(parts []Part, scheme *runtime.Scheme) (map[string]cached, error) {
	byKind := map[string]cached{}
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
			now := cached{object, part.Name}
			if before, there := byKind[kind]; there {
				if now, err = before.join(now); err != nil {
					return nil, fmt.Errorf("%s: %w", kind, err)
				}
			}
			byKind[kind] = now
		}
	}
	return byKind, nil
}

// cached is a part's selection for one kind.
type cached struct {
	object Object
	part   string
}

// join returns the union of two selections.
func (c cached) join(other cached) (cached, error) {
	if c.object.Keep != nil && other.object.Keep != nil {
		return cached{}, fmt.Errorf("networks %s and %s each have a Keep for it: one function must serve both", c.part, other.part)
	}
	joined := other
	if joined.object.Pods = nil; c.object.Pods != nil && other.object.Pods != nil {
		joined.object.Pods = c.object.Pods.join(other.object.Pods)
	}
	if c.object.Keep != nil {
		joined.object.Keep = c.object.Keep
	}
	if c.object.Namespace != other.object.Namespace {
		joined.object.Namespace = ""
	}
	if selector(c.object.Label) != selector(other.object.Label) || fieldSelector(c.object.Field) != fieldSelector(other.object.Field) {
		joined.object.Label, joined.object.Field = nil, nil // one of them needs more than the other one selects
	}
	return joined, nil
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
