package clusternetwork

import (
	"maps"
	"slices"

	networkv1 "weft.dev/weft/api/openshift/v1"
)

// TunnelPorts says at which UDP port a node's tunnels are, and which ports its pods can't send to. A packet that a pod sends to another
// node's tunnel port would come there from a known node's address, and be taken. So while the ClusterNetwork's port changes, each node
// closes to its pods every port at which any node's tunnels are or may be, and moves its own when all nodes have closed the new one.
type TunnelPorts struct {
	// Port is that of the node's tunnels.
	Port uint16
	// Closed are all that are closed to its pods, in ascending order: Port, the ClusterNetwork's, and what other nodes tell.
	Closed []uint16
}

// ToldPorts returns the ports that a HostSubnet tells, without what is no port, and whether it is a node's that is to tell some: not that
// of a host without an agent.
func ToldPorts(hs *networkv1.HostSubnet) (told []uint16, node bool) {
	for _, port := range hs.Status.VXLANPorts {
		if port > 0 && port <= 65535 {
			told = append(told, uint16(port))
		}
	}
	return told, len(told) > 0 || hs.Annotations[networkv1.AnnotationNodeUID] != ""
}

// PlaceTunnels returns a node's ports. wanted is the ClusterNetwork's; own is what the node's HostSubnet tells of it, none if it tells
// nothing yet, followed by what the node wrote there since and has not seen, and by what it has programmed; others are what those of
// other nodes tell, by name, none of one that has told nothing yet. waits are those that have not closed the wanted port, in order.
//
// It depends on what the API server has, so that an agent that starts comes to the same. What a node tells is Told of what it has
// programmed. By that, and because nobody opens a port that it still tells itself, a node whose tunnels move has seen that all others
// close the port, and they see that it may have moved before they open it.
func PlaceTunnels(wanted uint16, own [][]uint16, others map[string][]uint16) (ports TunnelPorts, waits []string) {
	lacks := func(told []uint16) bool { return !slices.Contains(told, wanted) }
	for _, name := range slices.Sorted(maps.Keys(others)) {
		if lacks(others[name]) {
			waits = append(waits, name)
		}
	}
	latest := slices.Concat(own[len(own)-1:]...)
	switch {
	case len(latest) > 0 && (len(waits) > 0 || slices.ContainsFunc(own, lacks)):
		ports.Port = latest[0]
	case len(waits) > 0: // a node that comes meanwhile is where the others are
		ports.Port = mostCommon(wanted, others)
	default:
		ports.Port = wanted
	}
	ports.Closed = slices.Concat(append(slices.Collect(maps.Values(others)), slices.Concat(own...), ports.Told(wanted))...)
	slices.Sort(ports.Closed)
	ports.Closed = slices.Compact(ports.Closed)
	return ports, waits
}

// mostCommon returns the port at which most tunnels are. Who tells nothing yet is thought to be at the wanted one: so are all, when nodes
// begin to tell.
func mostCommon(wanted uint16, others map[string][]uint16) uint16 {
	at := map[uint16]int{}
	for _, told := range others {
		at[append(told, wanted)[0]]++
	}
	port := wanted
	for _, other := range slices.Sorted(maps.Keys(at)) {
		if at[other] > at[port] {
			port = other
		}
	}
	return port
}

// Told is what a node tells others of its ports: at which its tunnels are, and at which they may come to be.
func (p TunnelPorts) Told(wanted uint16) []uint16 {
	if p.Port == wanted {
		return []uint16{wanted}
	}
	return []uint16{p.Port, wanted}
}
