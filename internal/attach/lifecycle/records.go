package lifecycle

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/network"
)

// closing are the attachments whose DEL is running or done.
type closing struct {
	mu   sync.Mutex
	keys map[attach.Key]bool
}

func (c *closing) add(key attach.Key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.keys[key] = true
}

func (c *closing) remove(key attach.Key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.keys, key)
}

func (c *closing) has(key attach.Key) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.keys[key]
}

// records are the attachments of one network.
type records struct {
	handler *Handler
	name    string
}

// Records returns the attachments of the network of that name.
func (h *Handler) Records(name string) network.Records { return &records{handler: h, name: name} }

// Attached implements network.Records.
func (r *records) Attached() []attach.Record {
	h := r.handler
	all := h.store.List()
	h.closing.mu.Lock()
	defer h.closing.mu.Unlock()
	return slices.DeleteFunc(all, func(rec attach.Record) bool {
		return network.KindOf(rec.Network) != r.name || !h.complete(&rec) || h.closing.keys[rec.Key()]
	})
}

// Put implements network.Records.
func (r *records) Put(ctx context.Context, rec attach.Record) error {
	h := r.handler
	if network.KindOf(rec.Network) != r.name {
		return fmt.Errorf("attachment %s: network %s cannot write a record of network %q", rec.Key(), r.name, rec.Network)
	}
	have, err := h.store.Get(rec.Key())
	if err == nil && network.KindOf(have.Network) != r.name {
		return fmt.Errorf("attachment %s: it already belongs to network %s", rec.Key(), have.Network)
	}
	if h.closing.has(rec.Key()) || err == nil && have.State == attach.Closing { // since this start, or before
		return fmt.Errorf("attachment %s: it is being removed", rec.Key())
	}
	return h.store.Put(ctx, rec)
}

// Reap implements network.Records.
func (r *records) Reap(rec attach.Record) {
	r.handler.reaper.addStray(rec)
	r.handler.reaper.wakeUp()
}

// TryLock implements network.Records.
func (r *records) TryLock(key attach.Key) (unlock func(), free bool) {
	now, cancel := context.WithCancel(context.Background())
	cancel()
	unlock, err := r.handler.lock(now, key)
	return unlock, err == nil
}
