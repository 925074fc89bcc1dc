package egress

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"weft.dev/weft/internal/nft"
	"weft.dev/weft/internal/overlay/feature"
	"weft.dev/weft/internal/overlay/host"
)

// Delays between retries of a conntrack flush.
const (
	firstRetry = 200 * time.Millisecond
	lastRetry  = 30 * time.Second
)

// flusher flushes the host's connections of egress IPs that moved to another node or project; their next packets start new connections. A
// flush goes over everything that the host tracks, so it runs in the background.
type flusher struct {
	wake chan struct{}

	mu sync.Mutex
	// left are addresses whose connections are still to be flushed.
	left map[netip.Addr]struct{}
}

func newFlusher() *flusher {
	return &flusher{wake: make(chan struct{}, 1), left: map[netip.Addr]struct{}{}}
}

// note adds addresses. Nothing is flushed before begin: flows and rules that lead to them must be out of effect by then.
func (f *flusher) note(addresses ...netip.Addr) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, address := range addresses {
		f.left[address] = struct{}{}
	}
}

// begin starts the flush of what was noted, without waiting.
func (f *flusher) begin() {
	select {
	case f.wake <- struct{}{}:
	default: // a wake-up is already waiting
	}
}

// take returns the noted addresses, and clears them.
func (f *flusher) take() []netip.Addr {
	f.mu.Lock()
	defer f.mu.Unlock()
	addresses := slices.SortedFunc(maps.Keys(f.left), netip.Addr.Compare)
	clear(f.left)
	return addresses
}

// Flushing returns the addresses whose connections are still to be flushed.
func (a *Addresses) Flushing() []netip.Addr {
	a.flusher.mu.Lock()
	defer a.flusher.mu.Unlock()
	return slices.SortedFunc(maps.Keys(a.flusher.left), netip.Addr.Compare)
}

// flush flushes connections until ctx ends.
func (a *Addresses) flush(ctx context.Context) error {
	delay := firstRetry
	var again <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-a.flusher.wake:
		case <-again:
		}
		again = nil
		addresses := a.flusher.take()
		if len(addresses) == 0 {
			continue
		}
		if err := a.engines.Uplink.Flush(addresses...); err != nil {
			a.engines.Log.Warn("conntrack flush of former egress addresses failed, trying again", "error", err)
			a.flusher.note(addresses...)
			again, delay = time.After(delay), min(2*delay, lastRetry)
			continue
		}
		delay = firstRetry
	}
}

// Former returns the node's rules from before the restart, if Inherit needs them.
func (a *Addresses) Former(ctx context.Context) (map[nft.Key]nft.Item, error) {
	if a.engines.Uplink == nil {
		return nil, nil
	}
	have, err := a.engines.Rules.Read(ctx)
	if err != nil {
		return nil, fmt.Errorf("node rules: %w", err)
	}
	return have, nil
}

// Inherit notes the addresses that the rules from before the restart translate to, and the new ones do not, or for another VNID: it is
// unknown which project their connections belong to. Call it before the first rules are programmed.
func (a *Addresses) Inherit(v feature.View, former map[nft.Key]nft.Item) {
	now := map[netip.Addr]string{}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, rules := range a.change(v, true).rules {
		maps.Copy(now, host.Translated(rules))
	}
	for address, mark := range host.Translated(former) {
		if now[address] != mark {
			a.flusher.note(address)
		}
	}
}
