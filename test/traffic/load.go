package traffic

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
)

// Pair is a sender and a receiver: a namespace, and the address of an Echo.
type Pair struct {
	Name string
	From string
	To   netip.AddrPort
}

// Load is a stream between each of several pairs.
type Load struct {
	pairs   []Pair
	streams []*Stream
}

// NewLoad starts a stream of rate datagrams a second for each pair.
func NewLoad(pairs []Pair, rate int) (*Load, error) {
	l := &Load{pairs: pairs}
	for _, p := range pairs {
		s, err := NewStream(p.From, p.To, rate)
		if err != nil {
			_, stopErr := l.Stop()
			return nil, errors.Join(fmt.Errorf("%s: %w", p.Name, err), stopErr)
		}
		l.streams = append(l.streams, s)
	}
	return l, nil
}

// Stop ends all streams and returns the tally of each pair. The error describes the losses.
func (l *Load) Stop() (map[string]Tally, error) {
	tallies := map[string]Tally{}
	errs := make([]error, len(l.streams))
	var mu sync.Mutex
	var group sync.WaitGroup
	for i, s := range l.streams {
		group.Go(func() {
			tally, err := s.Stop()
			if err != nil || tally.Lost > 0 {
				errs[i] = errors.Join(fmt.Errorf("%s: %s, missing %v", l.pairs[i].Name, tally, tally.Missing), err)
			}
			mu.Lock()
			defer mu.Unlock()
			sum := tallies[l.pairs[i].Name]
			sum.Sent, sum.Lost = sum.Sent+tally.Sent, sum.Lost+tally.Lost
			tallies[l.pairs[i].Name] = sum
		})
	}
	group.Wait()
	l.streams = nil
	return tallies, errors.Join(errs...)
}
