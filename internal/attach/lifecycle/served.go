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

// served is a network that requests go to.
type served struct {
	name    string
	network network.Network
	// handedOver is closed once the network can remove, and left when requests do not go to it any more.
	handedOver <-chan struct{}
	left       chan struct{}
	// wake has its loop look at what is to be removed.
	wake chan struct{}
}

// Serve lets requests for the network's attachments through to it, until stop is called. What an earlier life of the agent or an earlier
// boot left unfinished is removed once handedOver is closed.
func (h *Handler) Serve(name string, n network.Network, handedOver <-chan struct{}) (stop func()) {
	s := &served{name: name, network: n, handedOver: handedOver, left: make(chan struct{}), wake: make(chan struct{}, 1)}
	for _, rec := range h.store.List() {
		if network.KindOf(rec.Network) == name && !h.complete(&rec) {
			h.reaper.add(rec.Key())
		}
	}
	h.mu.Lock()
	h.networks[name] = s
	h.mu.Unlock()
	select {
	case h.changed <- struct{}{}:
	default: // Run will look
	}
	return sync.OnceFunc(func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.networks[name] == s {
			delete(h.networks, name)
		}
		close(s.left)
	})
}

// of returns the network of that name, with a CNI error of the code where requests cannot reach it.
func (h *Handler) of(name string, code cni.Code) (*served, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s := h.networks[name]; s != nil {
		return s, nil
	}
	if len(h.networks) == 0 {
		return nil, cni.Errorf(code, "the node's network is not ready: %s: try again later", h.opts.Waiting())
	}
	return nil, cni.Errorf(code, "network %s is not running on this node: %s: try again later", name, h.opts.Waiting())
}

// Status reports whether the default network can serve ADD: a node whose pods can be attached stays ready while another network of it
// is not. Without a default network it reports whether any can. It implements cni.Handler.
func (h *Handler) Status(context.Context, *cni.Request) error {
	if err := h.any(); err != nil {
		err.Code = cni.CodeNotAvailable
		return err
	}
	name, err := h.opts.Default()
	if err != nil {
		return cni.Errorf(cni.CodeNotAvailable, "%w", err)
	}
	if name != "" {
		s, err := h.of(name, cni.CodeNotAvailable)
		if err != nil {
			return err
		}
		return status(s)
	}
	var errs []error
	for _, s := range h.all() {
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

// any returns an error while no network is there.
func (h *Handler) any() *cni.Error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.networks) > 0 {
		return nil
	}
	return cni.Errorf(cni.CodeTryAgainLater, "the node's network is not ready: %s: try again later", h.opts.Waiting())
}

// all returns the networks, ordered by name.
func (h *Handler) all() []*served {
	h.mu.Lock()
	defer h.mu.Unlock()
	list := make([]*served, 0, len(h.networks))
	for _, s := range h.networks {
		list = append(list, s)
	}
	slices.SortFunc(list, func(a, b *served) int { return strings.Compare(a.name, b.name) })
	return list
}
