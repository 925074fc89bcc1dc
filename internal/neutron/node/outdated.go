package node

import (
	"context"
	"slices"
	"sync"
	"time"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/neutron/pipeline"
	"weft.dev/weft/internal/openflow"
)

// virtual is the address and the port of a Service.
type virtual struct {
	protocol uint8
	at       openflow.CTTuple
}

func virtualOf(s *pipeline.Service) virtual {
	return virtual{s.Port.Protocol, openflow.CTTuple{Dst: s.Address, DstPort: s.Port.Number}}
}

// outdated returns the connections to flush when the Services of a network change. They are those of UDP to endpoints that are gone: UDP has
// no end of connection, and a client that keeps sending would stay with the endpoint. In the conntrack zones of the network's pods, they are
// also those to an address and a port that no Service had before: conntrack would never translate them.
//
// No other Service has the address, so connections to endpoints are flushed in all zones at once. Nothing is flushed if before is nil: an
// agent that starts has handed over nothing.
func outdated(before, after []pipeline.Service, zones []uint16) []openflow.CTFlush {
	if before == nil {
		return nil
	}
	was, is := map[virtual]bool{}, map[virtual]*pipeline.Service{}
	for i := range after {
		is[virtualOf(&after[i])] = &after[i]
	}
	var list []openflow.CTFlush
	for i := range before {
		key := virtualOf(&before[i])
		was[key] = true
		const udp = 17
		if key.protocol != udp {
			continue
		}
		for _, gone := range before[i].Endpoints {
			same := func(e pipeline.Endpoint) bool { return e.Addr == gone.Addr }
			if now := is[key]; now == nil || !slices.ContainsFunc(now.Endpoints, same) {
				list = append(list, openflow.CTFlush{
					Proto: key.protocol, Orig: key.at, Reply: openflow.CTTuple{Src: gone.Addr.Addr(), SrcPort: gone.Addr.Port()},
				})
			}
		}
	}
	for i := range after {
		key := virtualOf(&after[i])
		if was[key] {
			continue
		}
		for _, zone := range zones {
			list = append(list, openflow.CTFlush{
				Zone: &zone, Proto: key.protocol, Orig: key.at, Reply: openflow.CTTuple{Src: key.at.Dst, SrcPort: key.at.DstPort},
			})
		}
	}
	return list
}

// untracked returns the flushes of the TCP connections of pods whose connections were tracked and are not any more. Conntrack would find their
// packets invalid when they are tracked again, because it has not seen those in between.
func untracked(w *world, before map[attach.Key]tracked) []openflow.CTFlush {
	var list []openflow.CTFlush
	for i := range w.attached {
		const tcp = 6
		was, is := before[w.attached[i].Key()], w.tracked[w.attached[i].Key()]
		if was.v4 && !is.v4 || was.v6 && !is.v6 {
			for _, zone := range zonesOf(w.attached[i : i+1]) {
				list = append(list, openflow.CTFlush{Zone: &zone, Proto: tcp})
			}
		}
	}
	return list
}

// zonesOf returns the conntrack zones of pods.
func zonesOf(attached []attach.Record) []uint16 {
	var zones []uint16
	for i := range attached {
		if pod, _, err := podOf(&attached[i]); err == nil {
			zones = append(zones, pod.Zone)
		}
	}
	return zones
}

// flushes are the connections that are due to be flushed.
type flushes struct {
	wake chan struct{}

	mu  sync.Mutex
	due []openflow.CTFlush
}

func (f *flushes) add(list []openflow.CTFlush) {
	f.mu.Lock()
	f.due = append(f.due, list...)
	f.mu.Unlock()
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

func (f *flushes) take() []openflow.CTFlush {
	f.mu.Lock()
	defer f.mu.Unlock()
	due := f.due
	f.due = nil
	return due
}

// flushRetry is the delay before a failed flush is repeated.
const flushRetry = time.Second

// flushOutdated flushes what changes of Services have outdated, until ctx ends.
func (n *Network) flushOutdated(ctx context.Context) {
	var due []openflow.CTFlush
	var retry <-chan time.Time
	failed := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.outdated.wake:
		case <-retry:
		}
		retry = nil
		due = append(due, n.outdated.take()...)
		if len(due) == 0 {
			continue
		}
		err := n.flush(ctx, due)
		if err == nil {
			due, failed = nil, false
			continue
		}
		if !failed && ctx.Err() == nil {
			n.deps.Log.Warn("connections to former endpoints of Services may continue; trying again", "error", err)
		}
		failed, retry = true, time.After(flushRetry)
	}
}

// flush flushes connections, once the switch has the flows that were handed over. Until the datapath uses them, a packet would create the
// same conntrack entry again. A round of the datapath that is in progress may already have passed the flow in question, so there is a second
// round.
func (n *Network) flush(ctx context.Context, due []openflow.CTFlush) error {
	if err := n.settled(ctx); err != nil {
		return err
	}
	for range 2 {
		if err := n.vswitch.Settle(ctx); err != nil {
			return err
		}
		for _, of := range due {
			if err := n.flows().Engine.FlushCT(ctx, of); err != nil {
				return err //nolint:wrapcheck // it says what failed
			}
		}
	}
	return nil
}
