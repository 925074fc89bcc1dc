package node

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"weft.dev/weft/internal/transport"
)

// groupKey is a port of a Service.
type groupKey struct {
	uid      types.UID
	name     string
	protocol transport.Protocol
	port     uint16
}

// groups number the groups of the Services' ports, so that no two have the same number. A number is derived from its port alone, and is the
// same after a restart; only if two ports would get the same one, which users can cause, the later port gets the next free number. The zero
// value is ready.
type groups struct {
	mu       sync.Mutex
	numbers  map[scope]map[groupKey]uint32
	assigned map[uint32]bool
	// first returns where the search begins; nil: by hash.
	first func(scope, groupKey) uint32
}

// number returns the group of a port in a network.
func (g *groups) number(s scope, key groupKey) uint32 {
	g.mu.Lock()
	defer g.mu.Unlock()
	if number, there := g.numbers[s][key]; there {
		return number
	}
	if g.numbers == nil {
		g.numbers, g.assigned = map[scope]map[groupKey]uint32{}, map[uint32]bool{}
	}
	if g.numbers[s] == nil {
		g.numbers[s] = map[groupKey]uint32{}
	}
	first := hashOf
	if g.first != nil {
		first = g.first
	}
	const groups = 1<<31 - 1
	number := first(s, key) & groups
	for number == 0 || g.assigned[number] {
		number = (number + 1) & groups
	}
	g.numbers[s][key], g.assigned[number] = number, true
	return number
}

func hashOf(s scope, key groupKey) uint32 {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s/%s/%s/%s/%d/%d", s.namespace, s.name, key.uid, key.name, key.protocol, key.port))
	return binary.BigEndian.Uint32(sum[:4])
}

// keep frees the numbers of a network's other ports.
func (g *groups) keep(s scope, used map[groupKey]bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for key, number := range g.numbers[s] {
		if !used[key] {
			delete(g.numbers[s], key)
			delete(g.assigned, number)
		}
	}
	if len(g.numbers[s]) == 0 {
		delete(g.numbers, s)
	}
}
