package kubestore

import "sync"

// gate drops calls before it is opened, and then serializes them.
type gate struct {
	mu     sync.Mutex
	opened bool
}

func (g *gate) do(f func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.opened {
		f()
	}
}

func (g *gate) open(f func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	f()
	g.opened = true
}
