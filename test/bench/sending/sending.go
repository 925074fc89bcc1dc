// Package sending compares the switch's processor time for the packets of two ways, at a rate at which neither loses packets.
package sending

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"weft.dev/weft/test/bench/measure"
	"weft.dev/weft/test/bench/stage"
	"weft.dev/weft/test/traffic"
)

const (
	// forwardRate is the maximum number of datagrams per second; each is answered. A machine with two idle cores forwards that without loss
	// in the userspace datapath.
	forwardRate = 10_000
	// leastForwardRate is the lowest rate that measures the switch: below it, work without packets dominates.
	leastForwardRate = 500
	forwardTime      = 2 * time.Second
	// forwardLoss is the permitted share of lost datagrams in a valid round.
	forwardLoss = 0.01
)

// PacketCPU is the metric: processor time a packet, in microseconds.
const PacketCPU = "packet-cpu"

// Path is a way of packets to an end that answers each.
type Path struct {
	// Meter reads the processor time of the switch.
	Meter stage.Meter
	// From is the sender's network namespace, and To the destination.
	From string
	To   netip.AddrPort
}

// errLost says that more packets were lost than permitted.
var errLost = errors.New("packets were lost")

// Compare calls compare with the sides of two paths, at the highest rate at which the peer's path, the control, loses nothing, and neither
// path loses more than permitted.
func Compare(ctx context.Context, ours, peer *Path, compare func(ours, peer measure.Side) error) error {
	control := func(rate int) error {
		_, tally, err := peer.stream(ctx, rate)
		if err == nil && tally.Lost > 0 {
			err = fmt.Errorf("%w by the control at %d packets a second: %s", errLost, 2*rate, tally)
		}
		return err
	}
	return atHighestRate(control, func(rate int) error { return compare(ours.at(rate), peer.at(rate)) })
}

// atHighestRate calls compare with the highest rate, of forwardRate and its halves, that control accepts, and with lower rates while
// compare loses packets.
func atHighestRate(control, compare func(rate int) error) error {
	var err error
	for rate := forwardRate; rate >= leastForwardRate; rate /= 2 {
		if err = control(rate); err == nil {
			err = compare(rate)
		}
		if !errors.Is(err, errLost) {
			return err
		}
	}
	return fmt.Errorf("no rate down to %d datagrams a second is forwarded without loss; run this on an idle machine: %w", leastForwardRate, err)
}

// at measures a stream of one connection at a rate, including its first packets, which create the megaflows.
func (p *Path) at(rate int) measure.Side {
	return func(ctx context.Context) (measure.Figures, error) {
		used, tally, err := p.stream(ctx, rate)
		if err != nil {
			return nil, err
		}
		if float64(tally.Lost) > forwardLoss*float64(tally.Sent) {
			return nil, fmt.Errorf("%w: %s, more than a hundredth at %d packets a second", errLost, tally, 2*rate)
		}
		return measure.Figures{PacketCPU: float64(used) / float64(time.Microsecond) / float64(2*(tally.Sent-tally.Lost))}, nil
	}
}

// stream sends for forwardTime, and returns the switch's processor time.
func (p *Path) stream(ctx context.Context, rate int) (used time.Duration, tally traffic.Tally, err error) {
	before, err := p.Meter.Used()
	if err != nil {
		return 0, tally, err
	}
	stream, err := traffic.NewStream(p.From, p.To, rate)
	if err != nil {
		return 0, tally, err
	}
	select {
	case <-ctx.Done():
	case <-time.After(forwardTime):
	}
	tally, err = stream.Stop()
	if err = errors.Join(err, ctx.Err()); err != nil {
		return 0, tally, err
	}
	after, err := p.Meter.Used()
	return after - before, tally, err
}
