package agent

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/admin"
	"weft.dev/weft/internal/agent/cniconf"
	"weft.dev/weft/internal/agent/engines"
	"weft.dev/weft/internal/agent/events"
	"weft.dev/weft/internal/agent/firewall"
	"weft.dev/weft/internal/agent/networks"
	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/overlay"
	overlaynode "weft.dev/weft/internal/overlay/node"
	"weft.dev/weft/internal/reconcile"
)

// running is what the agent reports on once the engines are open.
type running struct {
	network *overlay.Network
	engines *engines.Engines
}

// reports are what the agent reports about itself: to operators, and in the status of the node's HostSubnet.
type reports struct {
	node, version string
	objects       *overlaynode.Objects
	store         *attach.Store
	networks      *networks.Networks
	waiting       *waiting
	// tables are the loops of networks' own nftables tables.
	tables engines.Tables
	// left are the leftovers of OpenShift SDN; nil before the agent runs.
	left *cniconf.Leftovers
	// engines are the node's engines, once they run. running is set once the overlay's engines are open.
	engines atomic.Pointer[engines.Engines]
	running atomic.Pointer[running]
	// refused is why the node is not in step with the objects; "" if it is.
	refused atomic.Value
}

// versionTimeout bounds the query for the switch's release. If the database does not answer, the rest of the state is still reported.
const versionTimeout = time.Second

// state returns the agent's state.
func (r *reports) state(ctx context.Context) admin.State {
	s := admin.State{Node: r.node, Version: r.version, Kernel: kernelRelease(), Attachments: len(r.store.List())}
	run := r.running.Load()
	if run == nil {
		if err := r.networks.Ready(); err != nil {
			s.Waiting = err.Error()
		}
		s.Ready = s.Waiting == ""
		return s
	}
	s.Ready = true
	if err := run.network.Ready(); err != nil {
		s.Ready, s.Waiting = false, err.Error()
	}
	if refused, ok := r.refused.Load().(string); ok && s.Ready {
		s.Refused = refused
	}
	if err := run.engines.Kernel.Firewall.State(); err != nil {
		s.Warnings = append(s.Warnings, "host firewall: "+err.Error())
	}
	s.Leftovers = r.leftoversOf(run.engines.Kernel.Firewall)
	s.Datapath = run.engines.Switch.Datapath
	limited, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()
	if version, err := run.engines.Switch.Database.Version(limited); err == nil { // without a version, the failure of the ovsdb engine says more
		s.OpenVSwitch = version
	}
	usage := run.network.Usage()
	s.Attachments, s.AddressesUsed, s.AddressesTotal = usage.Attachments, usage.Used, usage.Total
	if version := run.network.Projects.Realised(); version > 0 {
		s.VNIDsVersion = strconv.FormatUint(version, 10)
	}
	s.Mode = string(r.objects.Mode())
	s.VXLANPorts = r.objects.Port().Reported()
	s.RefusedEgressIPs = r.objects.RefusedEgressIPs()
	for _, e := range append(run.engines.Views(), run.engines.Switch.OtherViews()...) {
		s.Engines = append(s.Engines, e.State())
	}
	s.Engines = withClosed(s.Engines, r.closed(run.network))
	s.Realised, s.RealisedKnown = r.objects.Realised(run.network, s.Engines)
	r.namePods(func(name func(owner string) string) {
		for i := range s.Engines {
			for k := range s.Engines[i].Failures {
				s.Engines[i].Failures[k].Pod = name(s.Engines[i].Failures[k].Owner)
			}
		}
	})
	return s
}

// leftoversOf describes what OpenShift SDN left on the node.
func (r *reports) leftoversOf(f *firewall.Firewall) []string {
	all := r.left.All()
	if rules := f.Leftover(); rules != "" {
		all = append(all, rules)
	}
	return all
}

// closed returns why ports of this node are closed: attachments outside the node's current subnet or of namespaces without a VNID, and
// records of this boot that cannot be read. Such records are named by their files.
func (r *reports) closed(network *overlay.Network) map[reconcile.Owner]error {
	closed := network.Closed()
	if closed == nil {
		return nil
	}
	maps.Copy(closed, brokenRecords(r.store.Broken(), r.store.Booted()))
	return closed
}

// brokenRecords returns an error for each record that cannot be read, by its file's name. Records from before the node's boot are left out.
func brokenRecords(all []attach.Broken, boot time.Time) map[reconcile.Owner]error {
	broken := map[reconcile.Owner]error{}
	for _, b := range all {
		if b.Modified.Before(boot) {
			continue
		}
		broken[reconcile.Owner(events.RecordOwner+filepath.Base(b.Path))] = fmt.Errorf(
			"attachment record %s cannot be read, and its pod's port is closed: %w: delete the pod that reaches nothing on this node, or the file if there is none", b.Path, b.Err)
	}
	return broken
}

// withClosed adds the closed ports to the failures of the switch's flows.
func withClosed(all []admin.Engine, closed map[reconcile.Owner]error) []admin.Engine {
	for i := range all {
		if all[i].Name != engines.NameFlows || len(closed) == 0 {
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
		if diff.Engines[i].Name != engines.NameFlows || len(closed) == 0 {
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
func (r *reports) namePods(each func(name func(owner string) string)) {
	var pods map[string]string
	each(func(owner string) string {
		if pods == nil {
			pods = map[string]string{}
			for _, rec := range r.store.List() {
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
func (r *reports) diff(ctx context.Context) (admin.Diff, error) {
	run, e := r.running.Load(), r.engines.Load()
	switch {
	case run != nil:
		diff := r.compare(ctx, slices.Concat(run.engines.Views(), run.engines.Switch.OtherViews(), r.tables.Views()))
		diffClosed(&diff, r.closed(run.network))
		r.nameDifferences(&diff)
		return diff, nil
	case e != nil && len(e.Switch.OtherViews())+len(r.tables.Views()) > 0: // networks without the overlay
		return r.compare(ctx, slices.Concat(e.Kernel.Views(), e.Switch.OtherViews(), r.tables.Views())), nil
	}
	return admin.Diff{}, fmt.Errorf("nothing to compare yet: %s", r.waiting.get())
}

// compare reads back the state of the engines and compares it with the desired state.
func (r *reports) compare(ctx context.Context, all []engines.View) admin.Diff {
	diff := admin.Diff{InStep: true}
	for _, engine := range all {
		d := engine.Diff(ctx)
		diff.InStep = diff.InStep && d.Error == "" && len(d.Differences) == 0
		diff.Engines = append(diff.Engines, d)
	}
	r.nameDifferences(&diff)
	return diff
}

// nameDifferences adds the pods' names.
func (r *reports) nameDifferences(diff *admin.Diff) {
	r.namePods(func(name func(owner string) string) {
		for i := range diff.Engines {
			for k := range diff.Engines[i].Differences {
				diff.Engines[i].Differences[k].Pod = name(diff.Engines[i].Differences[k].Owner)
			}
		}
	})
}
