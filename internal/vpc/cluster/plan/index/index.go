// Package index has sets of values by two keys: a place, and a name in that place.
package index

// Index has values by place and name. No place is empty.
type Index[A, B comparable, V any] map[A]map[B]V

// Put adds a value, or replaces it.
func (x Index[A, B, V]) Put(at A, name B, value V) {
	if x[at] == nil {
		x[at] = map[B]V{}
	}
	x[at][name] = value
}

// Remove removes a value, if it is there.
func (x Index[A, B, V]) Remove(at A, name B) {
	if delete(x[at], name); len(x[at]) == 0 {
		delete(x, at)
	}
}
