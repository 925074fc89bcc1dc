package topology

import (
	"maps"
	"slices"

	"weft.dev/weft/internal/vpc/objects"
)

// maxTunnelKey is the highest key of a datapath in OVN (ovn-nb(5), requested-tnl-key).
const maxTunnelKey = 1<<24 - 1

// keyHolder is the holder of a datapath's tunnel key: a VPC's router, or a subnet's switch.
type keyHolder struct {
	age objects.Age
	// has is the key in the object's status, and key the one that the datapath gets.
	has int
	key *int
	// Exactly one of them is the holder.
	vpc    *VPC
	subnet *Subnet
}

// keys assigns each router's and switch's datapath its tunnel key. A key in an object's status is kept; of two objects with the same key,
// the older one keeps it. The others get the lowest free keys, by age.
type keys struct {
	holders map[*int]keyHolder
	// used are the holders of each key in a status, and twice the keys with several holders.
	used  map[int]map[*int]struct{}
	twice map[int]struct{}
	// lack are the holders without a key in their status, and given those whose key differs from that in the status.
	lack, given map[*int]struct{}
	// lowest: all lower keys are used.
	lowest int
}

func newKeys() keys {
	return keys{
		holders: map[*int]keyHolder{}, used: map[int]map[*int]struct{}{}, twice: map[int]struct{}{}, lack: map[*int]struct{}{},
		given: map[*int]struct{}{}, lowest: 1,
	}
}

// add adds a holder.
func (k *keys) add(h keyHolder) {
	if h.has < 1 || h.has > maxTunnelKey {
		h.has = 0
	}
	*h.key, k.holders[h.key] = h.has, h
	if h.has == 0 {
		k.lack[h.key] = struct{}{}
		return
	}
	if k.used[h.has] == nil {
		k.used[h.has] = map[*int]struct{}{}
	}
	if k.used[h.has][h.key] = struct{}{}; len(k.used[h.has]) > 1 {
		k.twice[h.has] = struct{}{}
	}
}

// remove removes a holder, if it is one.
func (k *keys) remove(key *int) {
	h, there := k.holders[key]
	if !there {
		return
	}
	delete(k.holders, key)
	delete(k.lack, key)
	delete(k.given, key)
	if h.has == 0 {
		return
	}
	switch delete(k.used[h.has], key); len(k.used[h.has]) {
	case 0:
		delete(k.used, h.has)
		k.lowest = min(k.lowest, h.has)
	case 1:
		delete(k.twice, h.has)
	}
}

// stored records that the holder's status now has its assigned key.
func (k *keys) stored(key *int) {
	h, there := k.holders[key]
	if !there || h.has == *key {
		return
	}
	k.remove(key)
	h.has = *key
	k.add(h)
}

// assign assigns keys to holders without one, and returns the holders whose key has changed.
func (k *keys) assign() []keyHolder {
	var lack []keyHolder
	for key := range k.lack {
		lack = append(lack, k.holders[key])
	}
	for number := range k.twice {
		sharing := k.sorted(k.used[number])
		lack = append(lack, sharing[1:]...)
	}
	slices.SortFunc(lack, compareHolders)
	before := make(map[*int]int, len(k.given)+len(lack))
	for key := range k.given {
		before[key], *key = *key, k.holders[key].has
	}
	clear(k.given)
	for len(k.used[k.lowest]) > 0 {
		k.lowest++
	}
	next := k.lowest
	for _, h := range lack {
		for len(k.used[next]) > 0 {
			next++
		}
		if _, noted := before[h.key]; !noted {
			before[h.key] = *h.key
		}
		*h.key, k.given[h.key] = next, struct{}{}
		next++
	}
	var changed []keyHolder
	for key, was := range before {
		if *key != was {
			changed = append(changed, k.holders[key])
		}
	}
	return changed
}

func (k *keys) sorted(of map[*int]struct{}) []keyHolder {
	all := make([]keyHolder, 0, len(of))
	for key := range maps.Keys(of) {
		all = append(all, k.holders[key])
	}
	slices.SortFunc(all, compareHolders)
	return all
}

func compareHolders(a, b keyHolder) int { return a.age.Compare(b.age) }
