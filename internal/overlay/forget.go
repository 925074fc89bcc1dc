package overlay

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"weft.dev/weft/internal/nft"
	"weft.dev/weft/internal/overlay/host"
)

// Delays between retries of a conntrack flush.
const (
	firstForgetRetry = 200 * time.Millisecond
	lastForgetRetry  = 30 * time.Second
)

// forgetter flushes the host's connections of egress IPs that moved to another node or project; their next packets start new connections. A
// flush goes over everything that the host tracks, so it runs in the background.
type forgetter struct {
	wake chan struct{}

	mu sync.Mutex
	// left are addresses whose connections are still to be flushed.
	left map[netip.Addr]struct{}
}

func newForgetter() *forgetter {
	return &forgetter{wake: make(chan struct{}, 1), left: map[netip.Addr]struct{}{}}
}

// note adds addresses. Nothing is flushed before begin: flows and rules that lead to them must be out of effect by then.
func (f *forgetter) note(addresses ...netip.Addr) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, address := range addresses {
		f.left[address] = struct{}{}
	}
}

// begin starts the flush of what was noted, without waiting.
func (f *forgetter) begin() {
	select {
	case f.wake <- struct{}{}:
	default: // a wake-up is already waiting
	}
}

// take returns the noted addresses, and clears them.
func (f *forgetter) take() []netip.Addr {
	f.mu.Lock()
	defer f.mu.Unlock()
	addresses := slices.SortedFunc(maps.Keys(f.left), netip.Addr.Compare)
	clear(f.left)
	return addresses
}

// forgetEgress flushes connections until ctx ends.
func (n *Network) forgetEgress(ctx context.Context) error {
	if n.engines.Uplink == nil {
		return nil
	}
	delay := firstForgetRetry
	var again <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-n.egress.forget.wake:
		case <-again:
		}
		again = nil
		addresses := n.egress.forget.take()
		if len(addresses) == 0 {
			continue
		}
		if err := n.engines.Uplink.Forget(addresses...); err != nil {
			n.opts.Log.Warn("conntrack flush of former egress addresses failed, trying again", "error", err)
			n.egress.forget.note(addresses...)
			again, delay = time.After(delay), min(2*delay, lastForgetRetry)
			continue
		}
		delay = firstForgetRetry
	}
}

// inheritEgress notes the addresses that the rules from before the restart translate to, and the new ones do not, or for another VNID: it
// is unknown which project their connections belong to. Call it before the first rules are programmed.
func (n *Network) inheritEgress(s *settings, have map[nft.Key]nft.Item) {
	now := map[netip.Addr]string{}
	for _, rules := range n.egressChange(s, true).rules {
		maps.Copy(now, host.Translated(rules))
	}
	for address, mark := range host.Translated(have) {
		if now[address] != mark {
			n.egress.forget.note(address)
		}
	}
}

// formerRules returns the node's rules from before the restart, if they are needed.
func (n *Network) formerRules(ctx context.Context) (map[nft.Key]nft.Item, error) {
	if n.engines.Uplink == nil {
		return nil, nil
	}
	have, err := n.engines.Rules.Read(ctx)
	return have, named("node rules", err)
}
