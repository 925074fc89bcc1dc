// Package multicast decides which projects have multicast and which pods of a node send and receive it, and compiles the flows for it. It
// keeps its own state under its own lock. Projects does no I/O: it returns flows. Feature programs them.
//
// A VNID has multicast if all namespaces with that VNID have it enabled. A pod takes part with the VNIDs in its own flows: while its
// namespace moves, it receives what is sent with the old VNID and with the new one, as with unicast.
package multicast

import (
	"maps"
	"net/netip"
	"slices"
	"sync"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/overlay/pipeline"
	"weft.dev/weft/internal/reconcile"
)

// Namespace is the state of a namespace that multicast depends on.
type Namespace struct {
	VNID uint32
	// On says that multicast is enabled.
	On bool
}

// Change is a change of namespaces.
type Change struct {
	// Reset replaces all namespaces of former changes.
	Reset bool
	// Namespaces are those that changed; nil: the namespace is gone.
	Namespaces map[string]*Namespace
}

// Flows are fragments of the switch's flows, by owner; empty for withdrawn ones.
type Flows = map[reconcile.Owner]map[openflow.Key]openflow.Entry

// View is what else a pod's part depends on.
type View struct {
	// Config compiles the flows.
	Config *pipeline.Config
	// VNIDs returns the VNIDs with which a namespace's pods are reached and the one with which they send; false: it has none. Nil: the
	// network's mode has no VNIDs, and no multicast.
	VNIDs func(namespace string) (reached []uint32, sends uint32, has bool)
}

// Projects are the projects with multicast, and the pods of this node that take part. Its methods may be called concurrently. Flows must be
// handed over in the order in which they were returned, so the caller needs a lock for both.
type Projects struct {
	mu    sync.RWMutex
	known map[string]Namespace
	// wanted counts for each VNID its namespaces, and those of them with multicast enabled.
	wanted map[uint32]census
	// here are the attachments that take part; members are the receivers for each VNID.
	here    map[attach.Key]part
	members map[uint32]map[attach.Key]pipeline.MulticastMember
	// left are removed attachments, with the VNIDs whose lists of receivers had them.
	left map[attach.Key][]uint32
	// programmed are the owners whose flows were returned.
	programmed map[reconcile.Owner]struct{}
	// pending are owners whose flows may not be in effect, each with the number of the call of Await that noted it last.
	pending map[reconcile.Owner]uint64
	awaits  uint64
}

// census counts namespaces.
type census struct{ all, on int }

// enabled reports whether all namespaces have multicast enabled.
func (c census) enabled() bool { return c.all == c.on }

// part says how an attachment takes part.
type part struct {
	// sends says that it may send, with the VNID from.
	sends bool
	from  uint32
	// receives are the VNIDs with which it receives.
	receives []uint32
}

// New returns Projects without namespaces.
func New() *Projects {
	return &Projects{
		known: map[string]Namespace{}, wanted: map[uint32]census{}, here: map[attach.Key]part{}, left: map[attach.Key][]uint32{},
		members: map[uint32]map[attach.Key]pipeline.MulticastMember{}, programmed: map[reconcile.Owner]struct{}{}, pending: map[reconcile.Owner]uint64{},
	}
}

// Take stores a change, and reports whether anything differs, and whether the result of Nodes does.
func (p *Projects) Take(change *Change) (differs, nodes bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	had := p.anywhere()
	if change.Reset {
		clear(p.known)
		clear(p.wanted)
		differs = true
	}
	for name, now := range change.Namespaces {
		was, known := p.known[name]
		if known == (now != nil) && (now == nil || *now == was) {
			continue
		}
		differs = true
		if known {
			p.count(was, -1)
			delete(p.known, name)
		}
		if now != nil {
			p.count(*now, 1)
			p.known[name] = *now
		}
	}
	return differs, p.anywhere() != had
}

func (p *Projects) count(ns Namespace, by int) {
	c := p.wanted[ns.VNID]
	c.all += by
	if ns.On {
		c.on += by
	}
	if p.wanted[ns.VNID] = c; c == (census{}) {
		delete(p.wanted, ns.VNID)
	}
}

// anywhere reports whether any VNID has multicast. The caller holds mu.
func (p *Projects) anywhere() bool {
	for _, c := range p.wanted {
		if c.enabled() {
			return true
		}
	}
	return false
}

// Namespaces returns the names of the namespaces with a VNID, sorted.
func (p *Projects) Namespaces(vnid uint32) []string {
	p.mu.RLock()
	defer p.mu.RUnlock()
	var names []string
	for name, ns := range p.known {
		if ns.VNID == vnid {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Sends reports whether an attachment may send multicast.
func (p *Projects) Sends(v *View, rec *attach.Record) bool {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.part(v, rec).sends
}

// part returns how an attachment should take part. The caller holds mu.
func (p *Projects) part(v *View, rec *attach.Record) part {
	if v.VNIDs == nil || !p.known[rec.PodNamespace].On {
		return part{}
	}
	vnids, sends, has := v.VNIDs(rec.PodNamespace)
	if !has {
		return part{}
	}
	on := func(vnid uint32) bool { return p.wanted[vnid].enabled() } // a VNID that a namespace is moving from may have no namespace any more
	now := part{sends: on(sends)}
	if now.sends {
		now.from = sends
	}
	for _, vnid := range vnids {
		if on(vnid) && !slices.Contains(now.receives, vnid) {
			now.receives = append(now.receives, vnid)
		}
	}
	return now
}

// Place updates how attachments take part. It returns the flows that change, and the attachments whose own flows do.
func (p *Projects) Place(v *View, recs ...attach.Record) (flows Flows, changed []attach.Record) {
	p.mu.Lock()
	defer p.mu.Unlock()
	touched := map[uint32]struct{}{}
	for i := range recs {
		if p.place(v, &recs[i], touched) {
			changed = append(changed, recs[i])
		}
	}
	return p.compile(v, touched), changed
}

// place updates how an attachment takes part, adds the VNIDs whose receivers change to touched, and reports whether the attachment's own
// flows change. The caller holds mu.
func (p *Projects) place(v *View, rec *attach.Record, touched map[uint32]struct{}) (changed bool) {
	key := rec.Key()
	was, now := p.here[key], p.part(v, rec)
	for _, vnid := range was.receives {
		if !slices.Contains(now.receives, vnid) {
			p.drop(vnid, key)
			touched[vnid] = struct{}{}
		}
	}
	member, usable := memberOf(v, rec)
	for _, vnid := range now.receives {
		if have, is := p.members[vnid][key]; !usable || is && have == member {
			continue
		}
		if p.members[vnid] == nil {
			p.members[vnid] = map[attach.Key]pipeline.MulticastMember{}
		}
		p.members[vnid][key] = member
		touched[vnid] = struct{}{}
	}
	if p.here[key] = now; !now.sends && len(now.receives) == 0 {
		delete(p.here, key)
	}
	return was.sends != now.sends || was.from != now.from
}

// memberOf returns an attachment as a receiver; false if its port is closed.
func memberOf(v *View, rec *attach.Record) (pipeline.MulticastMember, bool) {
	pod := pipeline.Pod{Owner: reconcile.Owner(rec.Key().Owner()), OFPort: rec.OFPort}
	for _, address := range rec.Addresses {
		pod.Addrs = append(pod.Addrs, address.Addr())
	}
	i := slices.IndexFunc(pod.Addrs, netip.Addr.Is4)
	if i < 0 || v.Config.CheckPod(pod) != nil {
		return pipeline.MulticastMember{}, false
	}
	return pipeline.MulticastMember{OFPort: rec.OFPort, Addr: pod.Addrs[i]}, true
}

func (p *Projects) drop(vnid uint32, key attach.Key) {
	delete(p.members[vnid], key)
	if len(p.members[vnid]) == 0 {
		delete(p.members, vnid)
	}
}

// compile returns the flows of VNIDs whose receivers changed. The caller holds mu.
func (p *Projects) compile(v *View, touched map[uint32]struct{}) Flows {
	flows := Flows{}
	for vnid := range touched {
		o := pipeline.MulticastOwner(vnid)
		flows[o] = pipeline.Multicast{Config: v.Config}.Project(vnid, slices.Collect(maps.Values(p.members[vnid])))
		if p.programmed[o] = struct{}{}; len(flows[o]) == 0 {
			delete(p.programmed, o)
		}
	}
	return flows
}

// Adapt starts again with these attachments and another View, and returns the flows of all current and former VNIDs.
func (p *Projects) Adapt(v *View, live map[attach.Key]attach.Record) Flows {
	p.mu.Lock()
	defer p.mu.Unlock()
	flows := Flows{}
	for o := range p.programmed {
		flows[o] = nil
	}
	clear(p.here)
	clear(p.members)
	clear(p.programmed)
	touched := map[uint32]struct{}{}
	for _, rec := range live {
		p.place(v, &rec, touched)
	}
	maps.Copy(flows, p.compile(v, touched))
	return flows
}

// Nodes returns the flows for multicast to and from other nodes; none while no project has multicast.
func (p *Projects) Nodes(v *View, remotes map[reconcile.Owner]pipeline.Remote) Flows {
	p.mu.RLock()
	defer p.mu.RUnlock()
	flows := Flows{pipeline.OwnerMulticastNodes: nil}
	if v.VNIDs != nil && p.anywhere() {
		flows[pipeline.OwnerMulticastNodes] = pipeline.Multicast{Config: v.Config}.Nodes(slices.Collect(maps.Values(remotes)))
	}
	return flows
}

// Leave removes attachments, and returns the flows that change.
func (p *Projects) Leave(v *View, keys ...attach.Key) Flows {
	p.mu.Lock()
	defer p.mu.Unlock()
	touched := map[uint32]struct{}{}
	for _, key := range keys {
		receives := p.here[key].receives
		for _, vnid := range receives {
			p.drop(vnid, key)
			touched[vnid] = struct{}{}
		}
		if len(receives) > 0 {
			p.left[key] = receives
		}
		delete(p.here, key)
	}
	return p.compile(v, touched)
}

// Withdrawn returns an error while a list of receivers may still have the port of an attachment that left: the port must not go to another
// pod. failure returns why an owner's flows are not in effect, nil if they are.
func (p *Projects) Withdrawn(keys []attach.Key, failure func(reconcile.Owner) error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, key := range keys {
		for _, vnid := range p.left[key] {
			if err := failure(pipeline.MulticastOwner(vnid)); err != nil {
				return err
			}
		}
		delete(p.left, key)
	}
	return nil
}

// Await notes owners whose flows were handed over and must be in effect before a change is complete.
func (p *Projects) Await(handed []reconcile.Owner) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.awaits++
	for _, o := range handed {
		p.pending[o] = p.awaits
	}
}

// Pending returns the owners whose flows may not be in effect, for InEffect.
func (p *Projects) Pending() map[reconcile.Owner]uint64 {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return maps.Clone(p.pending)
}

// InEffect notes that flows that were pending are in effect, unless newer ones of the same owners were handed over meanwhile.
func (p *Projects) InEffect(pending map[reconcile.Owner]uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for o, await := range pending {
		if p.pending[o] == await {
			delete(p.pending, o)
		}
	}
}
