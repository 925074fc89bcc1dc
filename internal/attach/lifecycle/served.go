package lifecycle

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"

	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/network"
)

// served is a network that gets requests.
type served struct {
	name    string
	network network.Network
	// handedOver is closed once the network can remove attachments. left is closed when it gets no more requests.
	handedOver <-chan struct{}
	left       chan struct{}
	// wake makes its loop check the attachments to remove.
	wake chan struct{}
}

// Serve passes requests for the network's attachments to it, until stop is called. Unfinished attachments of earlier agents or earlier
// boots are removed once handedOver is closed.
func (h *Handler) Serve(name string, n network.Network, handedOver <-chan struct{}) (stop func()) {
	s := &served{name: name, network: n, handedOver: handedOver, left: make(chan struct{}), wake: make(chan struct{}, 1)}
	for _, rec := range h.store.List() {
		if network.KindOf(rec.Network) == name && !h.complete(&rec) {
			h.reaper.add(rec.Key())
		}
	}
	h.board.add(s)
	return sync.OnceFunc(func() { h.board.remove(s) })
}

// switchboard has the networks that get requests.
type switchboard struct {
	// waiting returns what the agent waits for while a network is missing.
	waiting func() string
	// changed receives once a network was added.
	changed chan struct{}

	// mu guards networks. It is not held across calls of a network.
	mu       sync.Mutex
	networks map[string]*served
}

func newSwitchboard(waiting func() string) *switchboard {
	return &switchboard{waiting: waiting, networks: map[string]*served{}, changed: make(chan struct{}, 1)}
}

// add adds a network, or replaces the one of its name.
func (b *switchboard) add(s *served) {
	b.mu.Lock()
	b.networks[s.name] = s
	b.mu.Unlock()
	select {
	case b.changed <- struct{}{}:
	default: // a wake-up is pending
	}
}

// remove removes a network, and ends its requests.
func (b *switchboard) remove(s *served) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.networks[s.name] == s {
		delete(b.networks, s.name)
	}
	close(s.left)
}

// of returns the network of that name, or a CNI error with the code if requests cannot reach it.
func (b *switchboard) of(name string, code cni.Code) (*served, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if s := b.networks[name]; s != nil {
		return s, nil
	}
	if len(b.networks) == 0 {
		return nil, cni.Errorf(code, "the node's network is not ready: %s: try again later", b.waiting())
	}
	return nil, cni.Errorf(code, "network %s is not running on this node: %s: try again later", name, b.waiting())
}

// any returns an error while there is no network.
func (b *switchboard) any() *cni.Error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.networks) > 0 {
		return nil
	}
	return cni.Errorf(cni.CodeTryAgainLater, "the node's network is not ready: %s: try again later", b.waiting())
}

// all returns the networks, ordered by name.
func (b *switchboard) all() []*served {
	b.mu.Lock()
	defer b.mu.Unlock()
	list := make([]*served, 0, len(b.networks))
	for _, s := range b.networks {
		list = append(list, s)
	}
	slices.SortFunc(list, func(a, b *served) int { return strings.Compare(a.name, b.name) })
	return list
}

// Status reports whether the default network can serve ADD: the node stays ready while only another of its networks is not. Without a
// default network it reports whether any network can. It implements cni.Handler.
func (h *Handler) Status(context.Context, *cni.Request) error {
	if err := h.board.any(); err != nil {
		err.Code = cni.CodeNotAvailable
		return err
	}
	name, err := h.opts.Default()
	if err != nil {
		return cni.Errorf(cni.CodeNotAvailable, "%w", err)
	}
	if name != "" {
		s, err := h.board.of(name, cni.CodeNotAvailable)
		if err != nil {
			return err
		}
		return status(s)
	}
	var errs []error
	for _, s := range h.board.all() {
		err := status(s)
		if err == nil {
			return nil
		}
		errs = append(errs, err)
	}
	return cni.Errorf(cni.CodeNotAvailable, "%w", errors.Join(errs...))
}

func status(s *served) error {
	if err := s.network.Ready(); err != nil {
		return cni.Errorf(cni.CodeNotAvailable, "network %s: %w", s.name, err)
	}
	if limited, is := s.network.(network.Limiter); is {
		if err := limited.Limits(); err != nil {
			return cni.Errorf(cni.CodeLimitedConnectivity, "network %s: %w", s.name, err)
		}
	}
	return nil
}

func ready(s *served) error {
	if err := s.network.Ready(); err != nil {
		return cni.Errorf(cni.CodeTryAgainLater, "network %s is not ready: %w: try again later", s.name, err)
	}
	return nil
}
