package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/admin"
	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/nft"
	"weft.dev/weft/internal/nft/nftnl"
	"weft.dev/weft/internal/node"
	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/overlay"
	"weft.dev/weft/internal/overlay/host"
	"weft.dev/weft/internal/overlay/pipeline/cookies"
	"weft.dev/weft/internal/ovsdb"
	"weft.dev/weft/internal/reconcile"
)

// running is what the agent reports on once the engines are open.
type running struct {
	network *overlay.Network
	engines *engines
}

// serveAdmin answers the requests of operators until ctx ends.
func (a *agent) serveAdmin(ctx context.Context, listener net.Listener) error {
	server := &admin.Server{
		State: func() admin.State { return a.state(ctx) }, Diff: a.diff, Owners: a.ownersOf, Level: a.opts.LogLevel, Logger: a.opts.Log,
	}
	return server.Serve(ctx, listener)
}

// versionTimeout bounds the query for the switch's release. If the database does not answer, the rest of the state is still reported.
const versionTimeout = time.Second

// state returns the agent's state.
func (a *agent) state(ctx context.Context) admin.State {
	s := admin.State{Node: a.opts.Node, Version: a.opts.Version, Kernel: kernelRelease(), Attachments: len(a.store.List())}
	r := a.running.Load()
	if r == nil {
		if err := a.networks.ready(); err != nil {
			s.Waiting = err.Error()
		}
		s.Ready = s.Waiting == ""
		return s
	}
	s.Ready = true
	if err := r.network.Ready(); err != nil {
		s.Ready, s.Waiting = false, err.Error()
	}
	if refused, ok := a.refused.Load().(string); ok && s.Ready {
		s.Refused = refused
	}
	if err := r.engines.firewall.state(); err != nil {
		s.Warnings = append(s.Warnings, "host firewall: "+err.Error())
	}
	s.Leftovers = a.leftoversOf(r.engines.firewall)
	s.Datapath = r.engines.datapath
	limited, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()
	if version, err := r.engines.rows.Version(limited); err == nil { // without a version, the failure of the ovsdb engine says more
		s.OpenVSwitch = version
	}
	usage := r.network.Usage()
	s.Attachments, s.AddressesUsed, s.AddressesTotal = usage.Attachments, usage.Used, usage.Total
	if version := r.network.Projects.Realised(); version > 0 {
		s.VNIDsVersion = strconv.FormatUint(version, 10)
	}
	s.VXLANPorts = a.objects.port.reported()
	s.RefusedEgressIPs = a.objects.egressIPs.refusals()
	for _, e := range r.engines.withOthers() {
		s.Engines = append(s.Engines, e.state())
	}
	s.Engines = withClosed(s.Engines, a.closed(r.network))
	s.Realised, s.RealisedKnown = a.objects.realised(r.network, s.Engines)
	a.namePods(func(name func(owner string) string) {
		for i := range s.Engines {
			for k := range s.Engines[i].Failures {
				s.Engines[i].Failures[k].Pod = name(s.Engines[i].Failures[k].Owner)
			}
		}
	})
	return s
}

// closed returns why ports of this node are closed: attachments outside the node's current subnet, and records of this boot that cannot be
// read. Such records are named by their files.
func (a *agent) closed(network *overlay.Network) map[reconcile.Owner]error {
	closed := network.Closed()
	if closed == nil {
		return nil
	}
	var boot time.Time
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil {
		boot = time.Now().Add(-time.Duration(info.Uptime) * time.Second)
	}
	maps.Copy(closed, brokenRecords(a.store.Broken(), boot))
	return closed
}

// brokenRecords returns an error for each record that cannot be read, by its file's name. Records from before the node's boot are left out.
func brokenRecords(all []attach.Broken, boot time.Time) map[reconcile.Owner]error {
	broken := map[reconcile.Owner]error{}
	for _, b := range all {
		if b.Modified.Before(boot) {
			continue
		}
		broken[reconcile.Owner("record/"+filepath.Base(b.Path))] = fmt.Errorf(
			"attachment record %s cannot be read, and its pod's port is closed: %w: delete the pod that reaches nothing on this node, or the file if there is none", b.Path, b.Err)
	}
	return broken
}

// withClosed adds the closed ports to the failures of the switch's flows.
func withClosed(all []admin.Engine, closed map[reconcile.Owner]error) []admin.Engine {
	for i := range all {
		if all[i].Name != nameFlows || len(closed) == 0 {
			continue
		}
		all[i].InStep = false
		for _, owner := range slices.Sorted(maps.Keys(closed)) {
			all[i].Failures = append(all[i].Failures, admin.Failure{Owner: string(owner), Message: closed[owner].Error()})
		}
	}
	return all
}

// diffClosed adds the closed ports to the differences of the switch's flows.
func diffClosed(diff *admin.Diff, closed map[reconcile.Owner]error) {
	for i := range diff.Engines {
		if diff.Engines[i].Name != nameFlows || len(closed) == 0 {
			continue
		}
		diff.InStep = false
		for _, owner := range slices.Sorted(maps.Keys(closed)) {
			diff.Engines[i].Differences = append(diff.Engines[i].Differences, admin.Difference{
				Owner: string(owner), Change: admin.Missing, Item: "flows of the pod's port", Why: closed[owner].Error(),
			})
		}
	}
}

// namePods calls each with a function that returns the pod of an attachment. Operators know pods by name, not by container ID.
func (a *agent) namePods(each func(name func(owner string) string)) {
	var pods map[string]string
	each(func(owner string) string {
		if pods == nil {
			pods = map[string]string{}
			for _, rec := range a.store.List() {
				if rec.PodName != "" {
					pods[rec.Key().Owner()] = rec.PodNamespace + "/" + rec.PodName
				}
			}
		}
		return pods[owner]
	})
}

func kernelRelease() string {
	var name unix.Utsname
	if unix.Uname(&name) != nil {
		return ""
	}
	return unix.ByteSliceToString(name.Release[:])
}

// diff reads back the state of every engine and compares it with the desired state.
func (a *agent) diff(ctx context.Context) (admin.Diff, error) {
	r, e := a.running.Load(), a.engines.Load()
	switch {
	case r != nil:
		diff := a.compare(ctx, append(r.engines.withOthers(), a.tables.all()...))
		diffClosed(&diff, a.closed(r.network))
		a.nameDifferences(&diff)
		return diff, nil
	case e != nil && len(e.others())+len(a.tables.all()) > 0: // networks without the overlay
		return a.compare(ctx, append(append(e.kernel(), e.others()...), a.tables.all()...)), nil
	}
	return admin.Diff{}, fmt.Errorf("nothing to compare yet: %s", a.waiting.get())
}

// tables are the loops of networks' own nftables tables. They are shown beside the node's engines.
type tables struct {
	mu    sync.Mutex
	loops map[string]*node.TableLoop
}

func (t *tables) add(name string, loop *node.TableLoop) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.loops == nil {
		t.loops = map[string]*node.TableLoop{}
	}
	t.loops[name] = loop
}

// all returns the loops sorted by name.
func (t *tables) all() []observed {
	t.mu.Lock()
	defer t.mu.Unlock()
	var views []observed
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

// compare reads back the state of the engines and compares it with the desired state.
func (a *agent) compare(ctx context.Context, engines []observed) admin.Diff {
	diff := admin.Diff{InStep: true}
	for _, engine := range engines {
		d := engine.diff(ctx)
		diff.InStep = diff.InStep && d.Error == "" && len(d.Differences) == 0
		diff.Engines = append(diff.Engines, d)
	}
	a.nameDifferences(&diff)
	return diff
}

// nameDifferences adds the pods' names.
func (a *agent) nameDifferences(diff *admin.Diff) {
	a.namePods(func(name func(owner string) string) {
		for i := range diff.Engines {
			for k := range diff.Engines[i].Differences {
				diff.Engines[i].Differences[k].Pod = name(diff.Engines[i].Differences[k].Owner)
			}
		}
	})
}

// observed is an engine on which the agent reports.
type observed interface {
	state() admin.Engine
	diff(ctx context.Context) admin.EngineDiff
}

// all returns the engines in the order in which a start programs them.
func (e *engines) all() []observed {
	kernel := e.kernel()
	return []observed{
		kernel[0],
		engineView[ovsdb.Key, ovsdb.Row]{name: "ovsdb", loop: e.rowLoop, owner: rowOwner},
		kernel[1],
		engineView[openflow.Key, openflow.Entry]{name: "openflow", loop: e.flowLoop, owner: flowOwner, hashed: true},
	}
}

// withOthers returns all engines of a node with the overlay: its own in the order in which a start programs them, then those of other
// bridges.
func (e *engines) withOthers() []observed { return append(e.all(), e.others()...) }

// kernel returns the engines of a node without Open vSwitch.
func (e *engines) kernel() []observed {
	return []observed{
		engineView[nft.Key, nft.Item]{name: "nft", loop: e.ruleLoop, owner: ruleOwner},
		engineView[link.Key, link.Item]{name: "link", loop: e.linkLoop, owner: linkOwner},
	}
}

// others returns the engines for the flows of other networks' bridges, for those bridges that are in use.
func (e *engines) others() []observed {
	var views []observed
	for name, loop := range e.otherBridges() {
		views = append(views, engineView[openflow.Key, openflow.Entry]{name: flowsOf(name), loop: loop, owner: func(openflow.Entry) string { return "" }})
	}
	return views
}

// otherBridges returns the loops of bridges other than the overlay's that have desired flows, sorted by name.
func (e *engines) otherBridges() iter.Seq2[string, *node.FlowLoop] {
	return func(yield func(string, *node.FlowLoop) bool) {
		if !e.switched.Load() {
			return
		}
		for _, name := range slices.Sorted(maps.Keys(e.bridges)) {
			loop := e.bridges[name].Loop
			if name != host.Bridge && len(loop.Owners()) > 0 && !yield(name, loop) {
				return
			}
		}
	}
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

func (v engineView[K, V]) state() admin.Engine {
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

func (v engineView[K, V]) diff(ctx context.Context) admin.EngineDiff {
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
