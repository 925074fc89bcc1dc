package overlay

import (
	"context"
	"maps"
	"slices"
	"strconv"

	"weft.dev/weft/internal/overlay/multicast"
)

// UpdateMulticast programs a change of multicast. Until the network is in a mode with multicast, it only stores the change: all namespaces
// must be stored before the Update that brings the mode. After an error, the next call and the engine itself retry what could not be
// programmed.
func (n *Network) UpdateMulticast(ctx context.Context, change multicast.Change) error {
	n.updating.Lock()
	defer n.updating.Unlock()
	differs, nodes := n.multicast.Take(&change)
	s := n.settings.Load()
	if !differs && len(n.multicast.Pending()) == 0 || s == nil || !s.hasVNIDs() {
		return nil
	}
	again := *s // a copy, so that ADDs under way compile again
	n.settings.Store(&again)
	view := again.multicastView()
	n.opening.Lock()
	flows, changed := n.multicast.Place(view, slices.Collect(maps.Values(n.live))...)
	for i := range changed {
		flows[owner(changed[i].Key())] = n.podFlows(&again, &changed[i])
	}
	if nodes {
		maps.Copy(flows, n.multicast.Nodes(view, n.remotes))
	}
	if len(flows) > 0 {
		n.engines.Flows.Set(flows)
	}
	n.opening.Unlock()
	n.multicast.Await(flows)
	if pending := n.multicast.Pending(); len(pending) > 0 {
		if err := settled(ctx, n.engines.Flows, slices.Values(pending)); err != nil {
			return named("multicast", err)
		}
		n.multicast.InEffect(pending)
		n.purges.Due(true)
	}
	return n.purges.Flush(ctx)
}

// multicastView returns the settings that multicast depends on.
func (s *settings) multicastView() *multicast.View {
	v := &multicast.View{Config: &s.pipeline}
	if s.hasVNIDs() {
		v.VNIDs = s.projects.Reached
	}
	return v
}

// multicastProjects returns the NetNamespaces with the VNID.
func (n *Network) multicastProjects(vnid string) []Object {
	number, err := strconv.ParseUint(vnid, 10, 32)
	if err != nil {
		return nil
	}
	var objects []Object
	for _, name := range n.multicast.Namespaces(uint32(number)) {
		objects = append(objects, Object{Kind: "NetNamespace", Name: name})
	}
	return objects
}
