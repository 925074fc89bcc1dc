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

// Delays between tries to have connections forgotten.
const (
	firstForgetRetry = 200 * time.Millisecond
	lastForgetRetry  = 30 * time.Second
)

// forgetter has the host forget the connections of egress addresses that are elsewhere, or another project's: what goes on with them
// begins anew. It goes over all that the host tracks, and so it is done beside.
type forgetter struct {
	wake chan struct{}

	mu sync.Mutex
	// left are addresses whose connections are to be forgotten.
	left map[netip.Addr]struct{}
}

func newForgetter() *forgetter {
	return &forgetter{wake: make(chan struct{}, 1), left: map[netip.Addr]struct{}{}}
}

// note takes note of addresses. Nothing is forgotten before begin: what leads to them is to be out of effect by then.
func (f *forgetter) note(addresses ...netip.Addr) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, address := range addresses {
		f.left[address] = struct{}{}
	}
}

// begin has what was noted forgotten, without waiting.
func (f *forgetter) begin() {
	select {
	case f.wake <- struct{}{}:
	default: // it is about to
	}
}

// take returns what was noted.
func (f *forgetter) take() []netip.Addr {
	f.mu.Lock()
	defer f.mu.Unlock()
	addresses := slices.SortedFunc(maps.Keys(f.left), netip.Addr.Compare)
	clear(f.left)
	return addresses
}

// forgetEgress forgets until ctx ends.
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

// inheritEgress notes the addresses that a former life translated to, and this one does not, or for another VNID: whose connections these
// are, nobody knows any more. It is for the time before the first rules are programmed.
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

// formerRules returns the node's rules as a former life of the agent left them, where that matters.
func (n *Network) formerRules(ctx context.Context) (map[nft.Key]nft.Item, error) {
	if n.engines.Uplink == nil {
		return nil, nil
	}
	have, err := n.engines.Rules.Read(ctx)
	return have, named("node rules", err)
}
