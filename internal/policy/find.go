package policy

// pair is a label of an element, or a label that a selector requires. With any it is the label with any value.
type pair struct {
	key, value string
	any        bool
}

// holders finds the elements whose labels match a selector, without matching all of them.
type holders[T comparable] struct {
	all map[T]map[string]string
	// pairs is nil while there are so few elements that matching all of them is as fast.
	pairs map[pair]map[T]struct{}
}

// fewHolders is the number of elements up to which all are matched one by one.
const fewHolders = 16

func (h *holders[T]) add(t T, labels map[string]string) {
	if h.all == nil {
		h.all = map[T]map[string]string{}
	}
	h.all[t] = labels
	if h.pairs != nil {
		h.file(t, labels)
	} else if len(h.all) > fewHolders {
		h.pairs = map[pair]map[T]struct{}{}
		for t, labels := range h.all {
			h.file(t, labels)
		}
	}
}

func (h *holders[T]) file(t T, labels map[string]string) {
	for key, value := range labels {
		put(h.pairs, pair{key: key, value: value}, t, struct{}{})
		put(h.pairs, pair{key: key, any: true}, t, struct{}{})
	}
}

func (h *holders[T]) remove(t T) {
	for key, value := range h.all[t] {
		take(h.pairs, pair{key: key, value: value}, t)
		take(h.pairs, pair{key: key, any: true}, t)
	}
	delete(h.all, t)
}

// match calls yield for every element whose labels match a selector.
func (h *holders[T]) match(s Selector, yield func(T)) {
	buckets, narrowed := h.narrow(s)
	if !narrowed {
		for t, labels := range h.all {
			if s.Matches(labels) {
				yield(t)
			}
		}
		return
	}
	for _, bucket := range buckets {
		for t := range bucket {
			if s.Matches(h.all[t]) {
				yield(t)
			}
		}
	}
}

// narrow returns disjoint buckets that contain all matching elements: those of the requirement that the fewest elements meet.
func (h *holders[T]) narrow(s Selector) (best []map[T]struct{}, narrowed bool) {
	if h.pairs == nil {
		return nil, false
	}
	least := len(h.all)
	for i := range s.requirements {
		r := &s.requirements[i]
		var buckets []map[T]struct{}
		count := 0
		for _, p := range r.pairs() {
			buckets = append(buckets, h.pairs[p])
			count += len(h.pairs[p])
		}
		if len(buckets) > 0 && count < least {
			best, least, narrowed = buckets, count, true
		}
	}
	return best, narrowed
}

// pairs are the labels of which an element must have exactly one to meet the requirement; none if it can meet it without labels.
func (r *requirement) pairs() []pair {
	switch r.operator {
	case in:
		list := make([]pair, len(r.values))
		for i, value := range r.values {
			list[i] = pair{key: r.key, value: value}
		}
		return list
	case exists:
		return []pair{{key: r.key, any: true}}
	default:
		return nil
	}
}

// seekers finds the elements whose selectors match given labels, without matching all of them.
type seekers[T comparable] struct {
	selectors map[T]filed
	pairs     map[pair]map[T]struct{}
	// rest are the elements whose selectors require no label.
	rest map[T]struct{}
}

// filed is a selector and the place where it was filed.
type filed struct {
	selector Selector
	// requirement is the index of the requirement under whose pairs the selector is filed; -1: in rest.
	requirement int
}

func (s *seekers[T]) add(t T, selector Selector) {
	if s.selectors == nil {
		s.selectors, s.pairs, s.rest = map[T]filed{}, map[pair]map[T]struct{}{}, map[T]struct{}{}
	}
	// File it where there are fewest, so that a label that all selectors require does not collect them all.
	best, least := -1, 0
	for i := range selector.requirements {
		pairs := selector.requirements[i].pairs()
		count := 0
		for _, p := range pairs {
			count += 1 + len(s.pairs[p])
		}
		if len(pairs) > 0 && (best < 0 || count < least) {
			best, least = i, count
		}
	}
	s.selectors[t] = filed{selector, best}
	if best < 0 {
		s.rest[t] = struct{}{}
		return
	}
	for _, p := range selector.requirements[best].pairs() {
		put(s.pairs, p, t, struct{}{})
	}
}

func (s *seekers[T]) remove(t T) {
	f, ok := s.selectors[t]
	if !ok {
		return
	}
	delete(s.selectors, t)
	delete(s.rest, t)
	if f.requirement >= 0 {
		for _, p := range f.selector.requirements[f.requirement].pairs() {
			take(s.pairs, p, t)
		}
	}
}

// match calls yield for every element whose selector matches the labels.
func (s *seekers[T]) match(labels map[string]string, yield func(T)) {
	try := func(bucket map[T]struct{}) {
		for t := range bucket {
			if s.selectors[t].selector.Matches(labels) {
				yield(t)
			}
		}
	}
	try(s.rest)
	for key, value := range labels {
		try(s.pairs[pair{key: key, value: value}])
		try(s.pairs[pair{key: key, any: true}])
	}
}

func put[K, T comparable, V any](m map[K]map[T]V, key K, t T, v V) {
	inner := m[key]
	if inner == nil {
		inner = map[T]V{}
		m[key] = inner
	}
	inner[t] = v
}

func take[K, T comparable, V any](m map[K]map[T]V, key K, t T) {
	inner, ok := m[key]
	if !ok {
		return
	}
	delete(inner, t)
	if len(inner) == 0 {
		delete(m, key)
	}
}
