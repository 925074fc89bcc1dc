// Package groupid assigns the numbers by which the pipeline's flows refer to groups, conjunctions and egress firewalls.
package groupid

import (
	"crypto/sha256"
	"encoding/binary"
	"sync"
)

// IDs assigns numbers to groups, conjunctions and egress firewalls by a hash of the name, so that the same objects have the same numbers on
// every node and after a restart. If two hashes collide (with 10,000 names, that happens in one cluster out of a hundred), the first
// name gets the number. Sort names before the first use, so that the first name is the same after a restart.
//
// The zero value is ready. Its methods may be called concurrently.
type IDs struct {
	mu     sync.Mutex
	byName map[string]uint32
	byID   map[uint32]string
}

// ID returns the number of a name. It is kept until Release.
func (g *IDs) ID(name string) uint32 {
	g.mu.Lock()
	defer g.mu.Unlock()
	if id, ok := g.byName[name]; ok {
		return id
	}
	// OpenFlow's numbers end at 0xffffff00. The lowest are left to administrators' experiments.
	const lowest, numbers = 0x100, 0xff000000
	sum := sha256.Sum256([]byte(name))
	id := lowest + binary.BigEndian.Uint32(sum[:])%numbers
	for g.byID[id] != "" {
		id = lowest + (id-lowest+1)%numbers
	}
	if g.byName == nil {
		g.byName, g.byID = map[string]uint32{}, map[uint32]string{}
	}
	g.byName[name], g.byID[id] = id, name
	return id
}

// Release frees the number of a name. Another name may get it.
func (g *IDs) Release(name string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.byID, g.byName[name])
	delete(g.byName, name)
}
