package policy

import "weft.dev/weft/internal/transport"

// Sets returns the numbers of sets, names of sets and scopes.
func (x *Index) Sets() int {
	n := len(x.sets.byName) + len(x.sets.views) + len(x.sets.scopes) + len(x.sets.seeking.selectors) + len(x.sets.seeking.pairs) + len(x.sets.seeking.rest)
	if x.sets.any != nil {
		n++
	}
	return n
}

// Size returns the total number of elements in an index.
func (x *Index) Size() int {
	return x.Sets() + len(x.cluster.spaces) + len(x.cluster.known.all) + len(x.cluster.known.pairs) + len(x.cluster.pods) + len(x.cluster.groups) + len(x.cluster.at) + len(x.policies.bound)
}

// Split splits a range of ports as rules do.
func Split(protocol transport.Protocol, ranges ...[2]uint16) []Service {
	var list []portRange
	for _, r := range ranges {
		list = append(list, portRange{protocol, uint32(r[0]), uint32(r[1])})
	}
	return services(list)
}
