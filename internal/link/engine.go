package link

import (
	"context"
	"errors"

	"weft.dev/weft/internal/reconcile"
)

// Options of an Engine.
type Options struct {
	// Namespaces are looked at by Read in addition to the process's own and to those named in commits. One that does
	// not exist holds nothing.
	Namespaces []string
	// Devices are in care from the start, whatever their alias (tun0, before the first commit).
	Devices []Key
}

// Engine programs links, addresses, routes, neighbours and rules by netlink. The methods of reconcile.Engine are not
// called concurrently; Watch runs beside them.
type Engine struct {
	care *care
}

// Pods programs the veth pairs of pods. Its methods may be called concurrently.
type Pods struct{}

var (
	_ reconcile.Engine[Key, Item] = (*Engine)(nil)
	_ reconcile.Engine[Key, Item] = (*Fake)(nil)
	_ PodLinks                    = (*Pods)(nil)
	_ PodLinks                    = (*FakePods)(nil)
)

// Drift says what changed behind the engine's back. The zero value with All set says that anything may have.
type Drift struct {
	// All says that events were lost.
	All bool
	// Device is the name of the device it was about, when known.
	Device string
	// Kind is what changed.
	Kind Kind
}

// NewEngine returns an engine.
func NewEngine(options Options) *Engine { return &Engine{} }

// Read implements reconcile.Engine.
func (e *Engine) Read(ctx context.Context) (map[Key]Item, error) { return nil, errors.ErrUnsupported }

// Commit implements reconcile.Engine.
func (e *Engine) Commit(ctx context.Context, change reconcile.Change[Key, Item]) error {
	return errors.ErrUnsupported
}

// Watch reports changes of links, addresses, routes and rules in care in the process's own namespace until ctx ends; then
// the channel is closed. The first value, with All set, says that watching has begun. When events were lost it
// resubscribes and reports All. Slow readers lose detail (All), never a change.
func (e *Engine) Watch(ctx context.Context) (<-chan Drift, error) { return nil, errors.ErrUnsupported }

// NewPods returns the pod operations of the process's own network namespace.
func NewPods() (*Pods, error) { return &Pods{}, nil }

// Close releases the sockets.
func (p *Pods) Close() {}

// Create implements PodLinks.
func (p *Pods) Create(ctx context.Context, pair Pair) (Created, error) {
	return Created{}, errors.ErrUnsupported
}

// Check implements PodLinks.
func (p *Pods) Check(ctx context.Context, pair Pair) error { return errors.ErrUnsupported }

// Delete implements PodLinks.
func (p *Pods) Delete(ctx context.Context, hostNames ...string) error { return errors.ErrUnsupported }

// List implements PodLinks.
func (p *Pods) List(ctx context.Context) (map[string]string, error) {
	return nil, errors.ErrUnsupported
}

type care struct{}

// Fake is an Engine in memory.
type Fake struct{}

// NewFake returns an empty Fake in which the given devices exist.
func NewFake(devices ...Key) *Fake { return &Fake{} }

// Read implements reconcile.Engine.
func (f *Fake) Read(ctx context.Context) (map[Key]Item, error) { return nil, errors.ErrUnsupported }

// Commit implements reconcile.Engine.
func (f *Fake) Commit(ctx context.Context, change reconcile.Change[Key, Item]) error {
	return errors.ErrUnsupported
}

// FakePods keeps pairs in memory.
type FakePods struct{}

// NewFakePods returns FakePods in which the given namespaces exist.
func NewFakePods(namespaces ...string) *FakePods { return &FakePods{} }

// Create implements PodLinks.
func (p *FakePods) Create(ctx context.Context, pair Pair) (Created, error) {
	return Created{}, errors.ErrUnsupported
}

// Check implements PodLinks.
func (p *FakePods) Check(ctx context.Context, pair Pair) error { return errors.ErrUnsupported }

// Delete implements PodLinks.
func (p *FakePods) Delete(ctx context.Context, hostNames ...string) error {
	return errors.ErrUnsupported
}

// List implements PodLinks.
func (p *FakePods) List(ctx context.Context) (map[string]string, error) {
	return nil, errors.ErrUnsupported
}
