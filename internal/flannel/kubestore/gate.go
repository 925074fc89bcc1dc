package kubestore

import "sync"

// gate drops what comes before it is opened, and lets one through at a time after that.
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
