package reconcile

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
)

// Hash is an order-free digest of a state: the same items give the same hash, in whatever order they were added.
type Hash [4]uint64

// String returns the hash as 64 hexadecimal digits.
func (h Hash) String() string { return fmt.Sprintf("%016x%016x%016x%016x", h[0], h[1], h[2], h[3]) }

// plus adds an item's digest. Addition modulo 2^64 commutes, so items may be added and removed in any order.
func (h Hash) plus(item Hash) Hash {
	for i := range h {
		h[i] += item[i]
	}
	return h
}

// minus removes an item's digest.
func (h Hash) minus(item Hash) Hash {
	for i := range h {
		h[i] -= item[i]
	}
	return h
}

func digest(item []byte) Hash {
	sum := sha256.Sum256(item)
	var h Hash
	for i := range h {
		h[i] = binary.BigEndian.Uint64(sum[8*i:])
	}
	return h
}

// claim is the value that one owner desires for a key.
type claim[V any] struct {
	owner Owner
	value V
}

// desired is the union of all fragments. If several owners claim a key with different values, the owner that sorts first gets it, so that
// the result depends on the objects alone and not on their order of arrival.
type desired[K comparable, V Value[V]] struct {
	fragments map[Owner]map[K]V
	claims    map[K][]claim[V]
	encode    func(K, V) []byte
	hash      Hash
}

func newDesired[K comparable, V Value[V]](encode func(K, V) []byte) *desired[K, V] {
	return &desired[K, V]{fragments: map[Owner]map[K]V{}, claims: map[K][]claim[V]{}, encode: encode}
}

// set replaces the owner's fragment (nil or empty: it has none any more) and calls touched for every key whose claims changed.
func (d *desired[K, V]) set(owner Owner, fragment map[K]V, touched func(K)) {
	old := d.fragments[owner]
	for key := range old {
		if _, kept := fragment[key]; !kept {
			d.reclaim(key, owner, nil)
			touched(key)
		}
	}
	next := fragment
	if len(old) > 0 {
		next = maps.Clone(fragment) // the caller may still read the fragment
	}
	for key, value := range fragment {
		if have, ok := old[key]; ok && value.Equal(have) {
			next[key] = have // the one in claims, so that equal values are in memory once
			continue
		}
		d.reclaim(key, owner, &value)
		touched(key)
	}
	if len(fragment) == 0 {
		delete(d.fragments, owner)
		return
	}
	d.fragments[owner] = next
}

// reclaim sets the owner's claim on key to value (nil removes the claim) and updates the hash.
func (d *desired[K, V]) reclaim(key K, owner Owner, value *V) {
	before, had := d.get(key)
	claims := slices.DeleteFunc(d.claims[key], func(c claim[V]) bool { return c.owner == owner })
	if value != nil {
		at, _ := slices.BinarySearchFunc(claims, owner, func(c claim[V], o Owner) int {
			if c.owner < o {
				return -1
			}
			return 1
		})
		claims = slices.Insert(claims, at, claim[V]{owner, *value})
	}
	if len(claims) == 0 {
		delete(d.claims, key)
	} else {
		d.claims[key] = claims
	}
	if d.encode == nil {
		return
	}
	if had {
		d.hash = d.hash.minus(digest(d.encode(key, before)))
	}
	if after, has := d.get(key); has {
		d.hash = d.hash.plus(digest(d.encode(key, after)))
	}
}

// get returns the value desired under key.
func (d *desired[K, V]) get(key K) (V, bool) {
	if claims := d.claims[key]; len(claims) > 0 {
		return claims[0].value, true
	}
	var none V
	return none, false
}

// conflict returns an error if another owner holds one of the owner's keys with another value.
func (d *desired[K, V]) conflict(owner Owner) error {
	for key, value := range d.fragments[owner] {
		if first := d.claims[key][0]; first.owner != owner && !first.value.Equal(value) {
			return &ConflictError{Owner: owner, Holder: first.owner, Key: fmt.Sprint(key)}
		}
	}
	return nil
}

// union returns a copy of the whole desired state.
func (d *desired[K, V]) union() map[K]V {
	all := make(map[K]V, len(d.claims))
	for key, claims := range d.claims {
		all[key] = claims[0].value
	}
	return all
}

// ownersOf returns the owners that claim the key.
func (d *desired[K, V]) ownersOf(key K) []Owner {
	owners := make([]Owner, 0, 1)
	for _, c := range d.claims[key] {
		owners = append(owners, c.owner)
	}
	return owners
}
