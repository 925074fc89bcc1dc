package overlay

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/attach/plan"
	"weft.dev/weft/internal/clusternetwork"
	"weft.dev/weft/internal/ipam"
	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/overlay/pipeline"
	"weft.dev/weft/internal/overlay/recovery"
	"weft.dev/weft/internal/overlay/remotes"
	"weft.dev/weft/internal/ovsdb"
	"weft.dev/weft/internal/reconcile"
)

// compileRemotes returns the fragments of the remote hosts that differ from those of the previous call, or of all.
func (n *Network) compileRemotes(s *settings, hosts []clusternetwork.HostSubnet, all bool) remotes.Fragments {
	f, changed := n.hosts.Update(remotes.Config{Pipeline: &s.pipeline, Host: &s.host, All: all, Log: n.opts.Log}, hosts)
	if all || changed {
		maps.Copy(f.Flows, n.Multicast.Nodes(n.Multicast.View(&s.pipeline), n.hosts.Usable()))
	}
	return f
}

// setPods hands over the fragments of all attachments without waiting. Failure reports their fate.
func (n *Network) setPods(s *settings) {
	n.opening.Lock()
	defer n.opening.Unlock()
	rows := make(map[reconcile.Owner]map[ovsdb.Key]ovsdb.Row, len(n.live))
	// These go together with the pods' flows, which carry the numbers of their firewalls and say whether they are isolated. Without the rules
	// of policies, isolated pods would receive nothing.
	flows := n.adaptPolicies(s)
	maps.Copy(flows, n.Firewalls.Adapt(s.featureView(n.live)))
	maps.Copy(flows, n.Multicast.Adapt(n.Multicast.View(&s.pipeline), n.live))
	for key, rec := range n.live {
		if err := s.pipeline.CheckPod(pod(&rec)); err != nil {
			n.opts.Log.Error("port of a pod stays closed", "attachment", key.String(), "error", err)
			if n.opts.Closed != nil {
				n.opts.Closed(rec, closedError(err))
			}
		}
		flows[owner(key)], rows[owner(key)] = n.podFlows(s, &rec), n.ports.preplugged.rows(&rec)
	}
	n.engines.Rows.Set(rows)
	n.engines.Flows.Set(flows)
}

// closedError says why a pod's port is closed, and how to open it.
func closedError(err error) error {
	return fmt.Errorf("the port is closed, and the pod has no traffic: %w: delete the pod, or assign the node its former subnet again", err)
}

// Closed returns the attachments whose ports are closed although they are attached, with the reasons.
func (n *Network) Closed() map[reconcile.Owner]error {
	s := n.settings.Load()
	if s == nil {
		return nil
	}
	n.opening.Lock()
	defer n.opening.Unlock()
	closed := map[reconcile.Owner]error{}
	for key, rec := range n.live {
		if err := s.pipeline.CheckPod(pod(&rec)); err != nil {
			closed[owner(key)] = closedError(err)
		}
	}
	return closed
}

// closePods withdraws the flows of all pods, and waits until they are gone.
func (n *Network) closePods(ctx context.Context) error {
	n.opening.Lock()
	closed := make(map[reconcile.Owner]map[openflow.Key]openflow.Entry, len(n.live))
	for key := range n.live {
		closed[owner(key)] = nil
	}
	n.engines.Flows.Set(closed)
	n.enforcer.Hide(slices.Collect(maps.Keys(n.live))...)
	n.opening.Unlock()
	return named("closing pods before the mode changes", n.engines.Flows.Apply(ctx, closed))
}

// open adds an attachment to those that setPods compiles. The caller hands over the attachment's own fragments afterwards.
func (n *Network) open(rec attach.Record) {
	n.opening.Lock()
	defer n.opening.Unlock()
	if _, live := n.live[rec.Key()]; !live {
		n.countPods(rec.PodNamespace, 1)
	}
	n.live[rec.Key()] = rec
	if rec.State == attach.Attached {
		n.ports.ends.made(&rec)
	}
	n.enforcer.Attach(&rec)
	if s := n.settings.Load(); s != nil {
		if flows, _ := n.Multicast.Place(n.Multicast.View(&s.pipeline), rec); len(flows) > 0 {
			n.engines.Flows.Set(flows)
		}
	}
}

// countPods adds to the number of a namespace's pods on this node; pods may be negative. The caller holds opening.
func (n *Network) countPods(namespace string, pods int) {
	var config *pipeline.Config
	if s := n.settings.Load(); s != nil {
		config = &s.pipeline
	}
	flows, changed := n.Firewalls.Inhabit(config, namespace, pods)
	if len(flows) > 0 {
		n.engines.Flows.Set(flows)
	}
	if changed && n.opts.WithPods != nil {
		n.opts.WithPods()
	}
}

// shut removes attachments from those that setPods compiles. Fragments that are withdrawn afterwards stay withdrawn.
func (n *Network) shut(keys ...attach.Key) {
	n.opening.Lock()
	defer n.opening.Unlock()
	for _, key := range keys {
		if rec, live := n.live[key]; live {
			delete(n.live, key)
			n.ports.ends.closed(key)
			n.enforcer.Detach(&rec)
			n.countPods(rec.PodNamespace, -1)
		}
	}
	if s := n.settings.Load(); s != nil {
		if flows := n.Multicast.Leave(n.Multicast.View(&s.pipeline), keys...); len(flows) > 0 {
			n.purges.Later()
			n.engines.Flows.Set(flows)
		}
	}
	n.enforcer.HandOver()
	n.enforcer.Narrow(true)
	n.purges.Wake()
}

// resume makes the allocators continue after the last record. On the first call it takes over the records: attached ones become live.
func (n *Network) resume(ctx context.Context, s *settings) error {
	former := n.ports.numbers.subnet() // only Update changes it
	if former == s.view.Local.Subnet {
		return nil
	}
	pool, err := ipam.NewPool(s.view.Local.Subnet)
	if err != nil {
		return fmt.Errorf("HostSubnet %s: %w", s.view.Local.Host, err)
	}
	if !former.IsValid() {
		if err := errors.Join(n.recover(ctx, s), n.takeOver(ctx)); err != nil {
			return err
		}
	}
	var last, own attach.Record
	for _, rec := range n.store.List() {
		if rec.Network == NetworkName && rec.Created.After(last.Created) {
			last = rec
		}
		if rec.Network == NetworkName && rec.Created.After(own.Created) && !n.ports.preplugged.has(rec.OFPort) {
			own = rec
		}
	}
	n.ports.numbers.resume(pool, &last, &own)
	return nil
}

// recover rebuilds unreadable records whose interfaces agree with the runtime's cache.
func (n *Network) recover(ctx context.Context, s *settings) error {
	r := recovery.Recovery{
		Network: NetworkName, Gateway: s.pipeline.Gateway, BootID: n.opts.BootID, Cache: n.opts.RuntimeCache, Store: n.store,
		Records: n.opts.Records, Preplugged: n.engines.Preplugged, Ports: n.opts.Ports, Log: n.opts.Log,
		Agrees: func(ctx context.Context, rec *attach.Record, prePlugged bool) error {
			pair, err := plan.Pair(rec, &s.attachments)
			if err != nil {
				return err
			}
			if prePlugged {
				pair.Preplugged = n.opts.Ports
			}
			return errors.Join(s.pipeline.CheckPod(pod(rec)), checkPair(ctx, n.engines.Pods, rec, pair))
		},
	}
	return r.Run(ctx)
}

// takeOver takes over records, pre-plugged ports and pods' links from before the restart. It deletes links of no pod, and reaps those
// without a record.
func (n *Network) takeOver(ctx context.Context) error {
	links, err := n.engines.Pods.List(ctx)
	if err != nil {
		return fmt.Errorf("links of pods: %w", err)
	}
	if err := n.ports.preplugged.takeOver(ctx); err != nil {
		return err
	}
	n.opening.Lock()
	defer n.opening.Unlock()
	known, recorded := map[string]bool{}, map[string]bool{}
	for _, rec := range n.store.List() {
		known[rec.Key().Owner()] = true
		if rec.BootID == n.opts.BootID {
			recorded[rec.HostInterface] = true
		}
	}
	for _, rec := range n.opts.Records.Attached() {
		n.live[rec.Key()] = rec
		n.enforcer.Attach(&rec)
	}
	var stray []string
	for name, o := range links {
		key, ok := attachment(o)
		switch {
		case link.IsPreplugged(o): // see preplugged.takeOver
		case !ok && !recorded[name]: // of a version that made links before their pods
			stray = append(stray, name)
		case ok && !known[o]:
			n.opts.Log.Warn("pod link without a record, removing it", "link", name, "attachment", key.String())
			n.opts.Records.Reap(attach.Record{
				Network: NetworkName, ContainerID: key.ContainerID, IfName: key.IfName, HostInterface: name, BootID: n.opts.BootID,
			})
		}
	}
	if len(stray) == 0 {
		return nil
	}
	if err := n.engines.Pods.Delete(ctx, stray...); err != nil {
		return fmt.Errorf("links of no pod: %w", err)
	}
	return nil
}

// attachment returns the key of the attachment that an owner names.
func attachment(owner string) (attach.Key, bool) {
	id, isAttachment := strings.CutPrefix(owner, "attachment/")
	container, ifName, ok := strings.Cut(id, "/")
	return attach.Key{ContainerID: container, IfName: ifName}, isAttachment && ok
}
