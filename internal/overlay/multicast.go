package overlay

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"sync"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/overlay/pipeline"
	"weft.dev/weft/internal/reconcile"
)

// MulticastNamespace is what multicast depends on of a namespace.
type MulticastNamespace struct {
	VNID uint32
	// On says that it wants multicast.
	On bool
}

// MulticastChange is what changed of it.
type MulticastChange struct {
	// Reset forgets everything that was told before.
	Reset bool
	// Namespaces are those that are others than before; nil: the namespace is there no more.
	Namespaces map[string]*MulticastNamespace
}

// multicast is which projects have multicast, and which pods of this node get whose.
//
// A VNID has it if all namespaces with it want it. A pod then takes part by the VNIDs that its own flows have: while its
// namespace moves, it gets what is sent with the old one and with the new one, as all else.
type multicast struct {
	// mu guards known and wanted.
	mu    sync.RWMutex
	known map[string]MulticastNamespace
	// wanted counts the namespaces with a VNID, and those of them that want multicast.
	wanted map[uint32]census

	// here are the attachments that take part, members those who get what is sent with a VNID, and programmed the owners whose flows
	// were handed over. Network.opening guards them, and left.
	here    map[attach.Key]part
	members map[uint32]map[attach.Key]pipeline.MulticastMember
	// left are attachments that are shut, with the VNIDs in whose lists they were.
	left       map[attach.Key][]uint32
	programmed map[reconcile.Owner]struct{}
	// pending are owners whose flows were handed over, and may not be in effect. Network.updating guards them.
	pending map[reconcile.Owner]struct{}
}

// census counts namespaces.
type census struct{ all, on int }

// wants reports whether none does without.
func (c census) wants() bool { return c.all == c.on }

// part is how an attachment takes part.
type part struct {
	// sends says that it may send, with the VNID from.
	sends bool
	from  uint32
	// gets are the VNIDs with which it gets.
	gets []uint32
}

func newMulticast() *multicast {
	return &multicast{
		known: map[string]MulticastNamespace{}, wanted: map[uint32]census{}, here: map[attach.Key]part{}, left: map[attach.Key][]uint32{},
		members: map[uint32]map[attach.Key]pipeline.MulticastMember{}, programmed: map[reconcile.Owner]struct{}{}, pending: map[reconcile.Owner]struct{}{},
	}
}

// UpdateMulticast brings multicast in step with a change. Until the network is in a mode that has it it only takes note: all
// has to be told by the Update that brings the mode. After an error, what could not be programmed is tried again by the next
// call, and by the engine itself.
func (n *Network) UpdateMulticast(ctx context.Context, change MulticastChange) error {
	n.updating.Lock()
	defer n.updating.Unlock()
	m := n.multicast
	had := m.anywhere()
	differs := m.take(&change)
	s := n.settings.Load()
	if !differs && len(m.pending) == 0 || s == nil || !s.view.Cluster.Mode.HasVNIDs() {
		return nil
	}
	again := *s // so that ADDs under way look again
	n.settings.Store(&again)
	fragments := map[reconcile.Owner]map[openflow.Key]openflow.Entry{}
	if m.anywhere() != had {
		maps.Copy(fragments, n.multicastNodes(&again))
	}
	n.opening.Lock()
	touched := map[uint32]struct{}{}
	for key, rec := range n.live {
		if m.place(&again, &rec, touched) {
			fragments[owner(key)] = n.podFlows(&again, &rec)
		}
	}
	m.compile(&again, touched, fragments)
	if len(fragments) > 0 {
		n.engines.Flows.Set(fragments)
	}
	n.opening.Unlock()
	for o := range fragments {
		m.pending[o] = struct{}{}
	}
	return n.settleMulticast(ctx)
}

// settleMulticast waits until what was handed over is in effect. The caller holds updating.
func (n *Network) settleMulticast(ctx context.Context) error {
	m := n.multicast
	if len(m.pending) > 0 {
		if err := settled(ctx, n.engines.Flows, maps.Keys(m.pending)); err != nil {
			return named("multicast", err)
		}
		clear(m.pending)
		n.purges.Due(true)
	}
	return n.purges.Flush(ctx)
}

// take takes a change over, and reports whether it is one.
func (m *multicast) take(change *MulticastChange) (differs bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if change.Reset {
		clear(m.known)
		clear(m.wanted)
		differs = true
	}
	for name, now := range change.Namespaces {
		was, had := m.known[name]
		if had == (now != nil) && (now == nil || *now == was) {
			continue
		}
		differs = true
		if had {
			m.count(was, -1)
			delete(m.known, name)
		}
		if now != nil {
			m.count(*now, 1)
			m.known[name] = *now
		}
	}
	return differs
}

func (m *multicast) count(ns MulticastNamespace, by int) {
	c := m.wanted[ns.VNID]
	c.all += by
	if ns.On {
		c.on += by
	}
	if m.wanted[ns.VNID] = c; c == (census{}) {
		delete(m.wanted, ns.VNID)
	}
}

// anywhere reports whether any VNID has multicast.
func (m *multicast) anywhere() bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	for _, c := range m.wanted {
		if c.wants() {
			return true
		}
	}
	return false
}

// projects returns the NetNamespaces that have a VNID.
func (m *multicast) projects(vnid string) []Object {
	number, err := strconv.ParseUint(vnid, 10, 32)
	if err != nil {
		return nil
	}
	m.mu.RLock()
	defer m.mu.RUnlock()
	var objects []Object
	for _, name := range slices.Sorted(maps.Keys(m.known)) {
		if m.known[name].VNID == uint32(number) {
			objects = append(objects, Object{Kind: "NetNamespace", Name: name})
		}
	}
	return objects
}

// part returns how an attachment is to take part.
func (s *settings) part(rec *attach.Record) part {
	if !s.view.Cluster.Mode.HasVNIDs() || s.multicast == nil {
		return part{}
	}
	m := s.multicast
	m.mu.RLock()
	defer m.mu.RUnlock()
	own := m.known[rec.PodNamespace]
	if !own.On {
		return part{}
	}
	vnids, sends := []uint32{own.VNID}, own.VNID
	if s.hasVNIDs() {
		var has bool
		if vnids, sends, has = s.tenants.of(rec.PodNamespace); !has {
			return part{}
		}
	}
	on := func(vnid uint32) bool { return m.wanted[vnid].wants() } // one that is being left may be nobody's any more
	p := part{sends: on(sends)}
	if p.sends {
		p.from = sends
	}
	for _, vnid := range vnids {
		if on(vnid) && !slices.Contains(p.gets, vnid) {
			p.gets = append(p.gets, vnid)
		}
	}
	return p
}

// of returns the VNIDs with which a namespace's pods are reached, and that with which they send.
func (t *tenants) of(namespace string) (reached []uint32, sends uint32, has bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	p := t.known[namespace]
	if p == nil {
		return nil, 0, false
	}
	return append([]uint32{p.sends, p.vnid}, p.admits...), p.sends, true
}

// place puts an attachment where it belongs, adds the VNIDs whose members change, and reports whether its own flows do. The caller
// holds Network.opening.
func (m *multicast) place(s *settings, rec *attach.Record, touched map[uint32]struct{}) (changed bool) {
	key := rec.Key()
	was, now := m.here[key], s.part(rec)
	for _, vnid := range was.gets {
		if !slices.Contains(now.gets, vnid) {
			m.drop(vnid, key)
			touched[vnid] = struct{}{}
		}
	}
	member, usable := memberOf(rec)
	usable = usable && s.pipeline.CheckPod(pod(rec)) == nil // others' ports are closed
	for _, vnid := range now.gets {
		if have, is := m.members[vnid][key]; !usable || is && have == member {
			continue
		}
		if m.members[vnid] == nil {
			m.members[vnid] = map[attach.Key]pipeline.MulticastMember{}
		}
		m.members[vnid][key] = member
		touched[vnid] = struct{}{}
	}
	if m.here[key] = now; !now.sends && len(now.gets) == 0 {
		delete(m.here, key)
	}
	return was.sends != now.sends || was.from != now.from
}

func memberOf(rec *attach.Record) (pipeline.MulticastMember, bool) {
	i := slices.IndexFunc(rec.Addresses, func(p netip.Prefix) bool { return p.Addr().Is4() })
	if i < 0 {
		return pipeline.MulticastMember{}, false
	}
	return pipeline.MulticastMember{OFPort: rec.OFPort, Addr: rec.Addresses[i].Addr()}, true
}

func (m *multicast) drop(vnid uint32, key attach.Key) {
	delete(m.members[vnid], key)
	if len(m.members[vnid]) == 0 {
		delete(m.members, vnid)
	}
}

// compile adds the fragments of VNIDs whose members changed. The caller holds Network.opening.
func (m *multicast) compile(s *settings, touched map[uint32]struct{}, fragments map[reconcile.Owner]map[openflow.Key]openflow.Entry) {
	for vnid := range touched {
		o := pipeline.MulticastOwner(vnid)
		fragments[o] = s.pipeline.Multicast(vnid, slices.Collect(maps.Values(m.members[vnid])))
		if m.programmed[o] = struct{}{}; len(fragments[o]) == 0 {
			delete(m.programmed, o)
		}
	}
}

// adapt makes multicast fit new settings, and returns the fragments of all VNIDs that there are, or were. The caller holds
// Network.opening.
func (m *multicast) adapt(s *settings, live map[attach.Key]attach.Record) map[reconcile.Owner]map[openflow.Key]openflow.Entry {
	fragments := map[reconcile.Owner]map[openflow.Key]openflow.Entry{}
	for o := range m.programmed {
		fragments[o] = nil
	}
	clear(m.here)
	clear(m.members)
	clear(m.programmed)
	touched := map[uint32]struct{}{}
	for _, rec := range live {
		m.place(s, &rec, touched)
	}
	m.compile(s, touched, fragments)
	return fragments
}

// multicastNodes returns the fragment by which multicast goes to and comes from other nodes: none while nobody has it. The caller
// holds updating.
func (n *Network) multicastNodes(s *settings) map[reconcile.Owner]map[openflow.Key]openflow.Entry {
	fragments := map[reconcile.Owner]map[openflow.Key]openflow.Entry{pipeline.OwnerMulticastNodes: nil}
	if s.view.Cluster.Mode.HasVNIDs() && n.multicast.anywhere() {
		fragments[pipeline.OwnerMulticastNodes] = s.pipeline.MulticastNodes(slices.Collect(maps.Values(n.remotes)))
	}
	return fragments
}

// joinMulticast has an attachment that is opened take part. The caller holds opening.
func (n *Network) joinMulticast(rec *attach.Record) {
	if s := n.settings.Load(); s != nil {
		touched := map[uint32]struct{}{}
		n.multicast.place(s, rec, touched)
		n.setMulticast(s, touched)
	}
}

// leaveMulticast has attachments that are shut take no part any more. The caller holds opening.
func (n *Network) leaveMulticast(keys ...attach.Key) {
	s := n.settings.Load()
	if s == nil {
		return
	}
	touched := map[uint32]struct{}{}
	for _, key := range keys {
		for _, vnid := range n.multicast.here[key].gets {
			n.multicast.drop(vnid, key)
			touched[vnid] = struct{}{}
		}
		if gets := n.multicast.here[key].gets; len(gets) > 0 {
			n.multicast.left[key] = gets
		}
		delete(n.multicast.here, key)
	}
	if len(touched) > 0 {
		n.purges.Later()
	}
	n.setMulticast(s, touched)
}

func (n *Network) setMulticast(s *settings, touched map[uint32]struct{}) {
	if len(touched) == 0 {
		return
	}
	fragments := map[reconcile.Owner]map[openflow.Key]openflow.Entry{}
	n.multicast.compile(s, touched, fragments)
	n.engines.Flows.Set(fragments)
}

// multicastWithdrawn returns an error while a list of receivers may have the port of an attachment that left: it must not be
// another's.
func (n *Network) multicastWithdrawn(keys []attach.Key) error {
	n.opening.Lock()
	defer n.opening.Unlock()
	for _, key := range keys {
		for _, vnid := range n.multicast.left[key] {
			o := pipeline.MulticastOwner(vnid)
			if err := n.engines.Flows.Failure(o); err != nil {
				return named(string(o), err)
			}
		}
		delete(n.multicast.left, key)
	}
	return nil
}
