package policy

// Sets returns the numbers of sets, names of sets and scopes.
func (x *Index) Sets() int {
	n := len(x.sets) + len(x.views) + len(x.scopes) + len(x.seeking.selectors) + len(x.seeking.pairs) + len(x.seeking.rest)
	if x.any != nil {
		n++
	}
	return n
}

// Size returns the total number of elements in an index.
func (x *Index) Size() int {
	return x.Sets() + len(x.spaces) + len(x.known.all) + len(x.known.pairs) + len(x.pods) + len(x.groups) + len(x.at) + len(x.policies)
}

// Split splits a range of ports as rules do.
func Split(protocol Protocol, ranges ...[2]uint16) []Service {
	var list []portRange
	for _, r := range ranges {
		list = append(list, portRange{protocol, uint32(r[0]), uint32(r[1])})
	}
	return services(list)
}
