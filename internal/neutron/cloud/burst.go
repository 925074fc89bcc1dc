package cloud

import (
	"context"
	"errors"
	"slices"
	"sync"

	"weft.dev/weft/internal/neutron/openstack"
)

// Burst has the progress of several calls of CreateBurst. It is safe for concurrent use.
type Burst struct {
	mu sync.Mutex
	// failed are hosts for which nothing more is created: OpenStack has refused their ports, or the outcome is unknown.
	failed map[string]bool
	// stopped reports that nothing more is created at all: the project's quota is used up, or OpenStack does not answer.
	stopped bool
}

// NewBurst returns a Burst without calls.
func NewBurst() *Burst { return &Burst{failed: map[string]bool{}} }

// goesOn reports whether ports of a host are still to be created.
func (b *Burst) goesOn(host string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.stopped && !b.failed[host]
}

// end records the outcome of a call. A taken address concerns no other call.
func (b *Burst) end(host string, err error) {
	if err == nil || errors.Is(err, ErrAddressTaken) {
		return
	}
	_, answered := errors.AsType[*openstack.Error](err)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failed[host] = true
	b.stopped = b.stopped || !answered || errors.Is(err, ErrQuota)
}

// CreateBurst creates ports as CreatePorts does. If a former call of the burst shows that this would fail, it creates none, and returns no
// error. If the project's quota has room for only some of the ports, Neutron refuses the whole request: CreateBurst then creates those for
// which there is room, by smaller requests, and returns them with ErrQuota.
func (s *portSet) CreateBurst(ctx context.Context, b *Burst, want NewPorts) ([]HeldPort, error) {
	if !b.goesOn(want.Host) {
		return nil, nil
	}
	made, err := s.createWithinQuota(ctx, want)
	b.end(want.Host, err)
	return made, err
}

func (s *portSet) createWithinQuota(ctx context.Context, want NewPorts) ([]HeldPort, error) {
	made, err := s.CreatePorts(ctx, want)
	count := len(want.Addresses)
	if count == 1 || !errors.Is(err, ErrQuota) {
		return made, err
	}
	for half := range slices.Chunk(want.Addresses, (count+1)/2) {
		part := want
		part.Addresses = half
		some, err := s.createWithinQuota(ctx, part)
		if made = append(made, some...); err != nil {
			return made, err
		}
	}
	return made, nil
}
