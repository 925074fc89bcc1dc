package overlay

import (
	"context"
	"sync"

	"weft.dev/weft/internal/link/podlink"
	"weft.dev/weft/internal/reconcile"
)

// breakable is an engine that can be made to fail.
type breakable[K comparable, V any] struct {
	reconcile.Engine[K, V]
	mu   sync.Mutex
	err  error
	hook func()
	bad  func(reconcile.Change[K, V]) error
}

// refuse sets a function that decides about each commit; nil: nothing is refused.
func (b *breakable[K, V]) refuse(bad func(reconcile.Change[K, V]) error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.bad = bad
}

func (b *breakable[K, V]) fail(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.err = err
}

// before sets a function that is called before each commit.
func (b *breakable[K, V]) before(hook func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.hook = hook
}

func (b *breakable[K, V]) Read(ctx context.Context) (map[K]V, error) {
	b.mu.Lock()
	err := b.err
	b.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return b.Engine.Read(ctx)
}

func (b *breakable[K, V]) Commit(ctx context.Context, change reconcile.Change[K, V]) error {
	b.mu.Lock()
	hook := b.hook
	b.mu.Unlock()
	if hook != nil {
		hook()
	}
	b.mu.Lock()
	err := b.err
	if err == nil && b.bad != nil {
		err = b.bad(change)
	}
	b.mu.Unlock()
	if err != nil {
		return err
	}
	return b.Engine.Commit(ctx, change)
}

// breakablePods are pods' links that can be made to fail.
type breakablePods struct {
	*podlink.Fake
	mu                     sync.Mutex
	create, delete, unplug func() error
}

func (p *breakablePods) Create(ctx context.Context, pair podlink.Pair) (podlink.Created, error) {
	p.mu.Lock()
	hook := p.create
	p.mu.Unlock()
	if hook != nil {
		if err := hook(); err != nil {
			return podlink.Created{}, err
		}
	}
	return p.Fake.Create(ctx, pair)
}

func (p *breakablePods) Delete(ctx context.Context, names ...string) error {
	p.mu.Lock()
	hook := p.delete
	p.mu.Unlock()
	if hook != nil {
		if err := hook(); err != nil {
			return err
		}
	}
	return p.Fake.Delete(ctx, names...)
}

func (p *breakablePods) Unplug(ctx context.Context, pair podlink.Pair, began func()) error {
	p.mu.Lock()
	hook := p.unplug
	p.mu.Unlock()
	if hook != nil {
		if err := hook(); err != nil {
			began()
			return err
		}
	}
	return p.Fake.Unplug(ctx, pair, began)
}

func (p *breakablePods) onUnplug(hook func() error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.unplug = hook
}

func (p *breakablePods) onCreate(hook func() error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.create = hook
}

func (p *breakablePods) onDelete(hook func() error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delete = hook
}

// switchPorts reports ports that the switch has added, as the function in added decides; nil: no port is reported.
type switchPorts struct {
	mu    sync.Mutex
	added func(name string, ofport uint32) <-chan struct{}
}

func (p *switchPorts) on(added func(name string, ofport uint32) <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.added = added
}

func (p *switchPorts) Added(name string, ofport uint32) (added <-chan struct{}, stop func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.added == nil {
		return nil, func() {}
	}
	return p.added(name, ofport), func() {}
}
