package engines

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"weft.dev/weft/internal/admin"
	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/nft"
	"weft.dev/weft/internal/nft/nftnl"
	"weft.dev/weft/internal/node"
	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/overlay/pipeline/cookies"
	"weft.dev/weft/internal/ovsdb"
	"weft.dev/weft/internal/reconcile"
)

// View is an engine on which the agent reports.
type View interface {
	// State returns the engine's state.
	State() admin.Engine
	// Diff reads back the state and compares it with the desired state.
	Diff(ctx context.Context) admin.EngineDiff
}

// Views returns the engines of a node with the overlay, in the order in which a start programs them.
func (e *Engines) Views() []View {
	kernel := e.Kernel.Views()
	return []View{
		kernel[0],
		engineView[ovsdb.Key, ovsdb.Row]{name: NameRows, loop: e.Switch.Rows, owner: rowOwner},
		kernel[1],
		engineView[openflow.Key, openflow.Entry]{name: NameFlows, loop: e.Switch.Flows(), owner: flowOwner, hashed: true},
	}
}

// Views returns the engines of a node without Open vSwitch.
func (k *Kernel) Views() []View {
	return []View{
		engineView[nft.Key, nft.Item]{name: NameRules, loop: k.Rules, owner: ruleOwner},
		engineView[link.Key, link.Item]{name: NameLinks, loop: k.Links, owner: linkOwner},
	}
}

// OtherViews returns the engines for the flows of other networks' bridges, for those bridges that are in use.
func (s *Switch) OtherViews() []View {
	var views []View
	for name, loop := range s.otherBridges() {
		views = append(views, engineView[openflow.Key, openflow.Entry]{name: flowsOf(name), loop: loop, owner: func(openflow.Entry) string { return "" }})
	}
	return views
}

// keyed is the key of an item.
type keyed interface {
	comparable
	fmt.Stringer
}

// item is one item of an engine's state.
type item[V any] interface {
	reconcile.Value[V]
	fmt.Stringer
}

// engineView reports on one engine.
type engineView[K keyed, V item[V]] struct {
	name string
	loop *reconcile.Loop[K, V]
	// owner returns the owner of an item, from the mark on it. For an item that is not desired, nothing else is known.
	owner func(V) string
	// hashed says that the loop computes a hash.
	hashed bool
}

// State implements View.
func (v engineView[K, V]) State() admin.Engine {
	status := v.loop.Status()
	e := admin.Engine{Name: v.name, InStep: status.InStep(), Items: status.Items, Waiting: status.Waiting}
	if v.hashed {
		e.Hash = status.Hash.String()
	}
	if !status.Committed.IsZero() {
		at := status.Committed.UTC()
		e.Committed = &at
	}
	for owner, err := range status.Failures {
		e.Failures = append(e.Failures, admin.Failure{Owner: string(owner), Message: err.Error()})
	}
	slices.SortFunc(e.Failures, func(a, b admin.Failure) int { return cmp.Compare(a.Owner, b.Owner) })
	return e
}

// Diff implements View.
func (v engineView[K, V]) Diff(ctx context.Context) admin.EngineDiff {
	d := admin.EngineDiff{Name: v.name}
	found, err := v.loop.Inspect(ctx)
	if errors.Is(err, reconcile.ErrNotStarted) {
		d.Error = "nothing is programmed before the agent has read the cluster's objects: " + err.Error()
		return d
	}
	if err != nil {
		d.Error = err.Error()
		return d
	}
	d.Desired, d.Programmed = found.Desired, found.Programmed
	for i := range found.Differences {
		d.Differences = append(d.Differences, v.difference(&found.Differences[i]))
	}
	slices.SortFunc(d.Differences, func(a, b admin.Difference) int {
		return cmp.Or(cmp.Compare(a.Owner, b.Owner), cmp.Compare(a.Item, b.Item))
	})
	return d
}

func (v engineView[K, V]) difference(found *reconcile.Difference[K, V]) admin.Difference {
	d := admin.Difference{Item: found.Key.String(), Change: admin.Different}
	switch {
	case !found.Held:
		d.Change = admin.Missing
	case !found.Wanted:
		d.Change = admin.Extra
	}
	if found.Wanted {
		d.Want = found.Want.String()
	}
	if found.Held {
		d.Have = found.Have.String()
	}
	switch {
	case len(found.Owners) > 0:
		d.Owner = string(found.Owners[0])
	case found.Held:
		d.Owner = v.owner(found.Have)
	default:
		d.Owner = v.owner(found.Want) // the sealing item, which belongs to no fragment
	}
	if found.Err != nil {
		d.Why = found.Err.Error()
	}
	return d
}

// ruleOwner returns the owner of an nftables item, from its comment.
func ruleOwner(item nft.Item) string {
	switch v := item.(type) {
	case *nft.Element:
		return v.Owner
	case *nft.ForeignJump:
		return v.Owner
	}
	return ""
}

// rowOwner returns the owner of a row, from its external_ids.
func rowOwner(row ovsdb.Row) string {
	switch v := row.(type) {
	case *ovsdb.Bridge:
		return v.ExternalIDs[ovsdb.OwnerID]
	case *ovsdb.Port:
		return v.ExternalIDs[ovsdb.OwnerID]
	}
	return ""
}

// linkOwner returns the owner of a device, from its alias.
func linkOwner(item link.Item) string {
	switch v := item.(type) {
	case *link.Device:
		return v.Owner
	case *link.Veth:
		return v.Owner
	}
	return ""
}

// flowOwner returns the kind of object that a flow comes from, from its cookie.
func flowOwner(entry openflow.Entry) string {
	if flow, ok := entry.(*openflow.Flow); ok {
		return cookies.Kind(flow.Cookie)
	}
	return ""
}

// Tables are the loops of networks' own nftables tables. They are shown beside the node's engines.
type Tables struct {
	mu    sync.Mutex
	loops map[string]*node.TableLoop
}

// Add adds a loop, or replaces the one of this name.
func (t *Tables) Add(name string, loop *node.TableLoop) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.loops == nil {
		t.loops = map[string]*node.TableLoop{}
	}
	t.loops[name] = loop
}

// Views returns the loops sorted by name.
func (t *Tables) Views() []View {
	t.mu.Lock()
	defer t.mu.Unlock()
	var views []View
	for _, name := range slices.Sorted(maps.Keys(t.loops)) {
		views = append(views, engineView[nftnl.Key, nftnl.Item]{name: name, loop: t.loops[name], owner: tableOwner})
	}
	return views
}

// tableOwner returns the owner of an item of such a table, from its comment.
func tableOwner(item nftnl.Item) string {
	if rules, ok := item.(*nftnl.Rules); ok && len(rules.Rules) > 0 {
		return rules.Rules[0].Owner
	}
	return ""
}
