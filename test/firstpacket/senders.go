package firstpacket

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"weft.dev/weft/internal/overlay/pipeline"
	"weft.dev/weft/lab"
	"weft.dev/weft/lab/plan"
	"weft.dev/weft/test/hostile"
	"weft.dev/weft/test/traffic"
)

const (
	// ahead is the number of addresses, after that of the pod that starts, to which packets are sent as well: pods get them next.
	ahead = 4
	// pause is the time between two rounds of packets to all these addresses.
	pause = 2 * time.Millisecond
	// discard is the port that they are sent to (RFC 863).
	discard = 9
)

// Marks of packets: a sniffer finds them by these.
const (
	markIn   = "honest-first-" // of those that are sent to pods that start
	markOut  = "startedPod-pod-"
	markNode = "node-to-its-own-pod"
)

// senders are pods that send to addresses before other pods get these.
type senders struct {
	raws []*traffic.Raw
	ends []hostile.End
	// routed says that pods of different nodes reach each other by their gateways.
	routed bool
	// aim holds the frames of each sender.
	aim  atomic.Pointer[[][][]byte]
	at   atomic.Pointer[[]netip.Addr]
	sent atomic.Int64
	stop context.CancelFunc
	done chan struct{}
	err  error
}

func newSenders(ctx context.Context, c *lab.Cluster, pods []*lab.Pod) (*senders, error) {
	s := &senders{done: make(chan struct{}), routed: c.Config.Network == plan.NetworkFlannel}
	for _, p := range pods {
		raw, err := traffic.OpenRaw(p.Netns, "eth0")
		if err != nil {
			return nil, errors.Join(err, s.closeRaws())
		}
		s.raws = append(s.raws, raw)
		s.ends = append(s.ends, hostile.End{MAC: pipeline.PodMAC(p.IPs[0]), IP: p.IPs[0]})
	}
	ctx, s.stop = context.WithCancel(ctx)
	go s.run(ctx)
	return s, nil
}

// follow aims at an address, and at those that a node's pods get after it.
func (s *senders) follow(last netip.Addr) error {
	addresses := []netip.Addr{last}
	for next := last.Next(); len(addresses) <= ahead; next = next.Next() {
		addresses = append(addresses, next)
	}
	frames := make([][][]byte, len(s.ends))
	for i, from := range s.ends {
		for _, to := range addresses {
			f, err := hostile.Honest(fmt.Sprintf("first-%d", i), from, s.via(from.IP, to), netip.AddrPortFrom(to, discard))
			if err != nil {
				return err
			}
			frames[i] = append(frames[i], f.Data)
		}
	}
	s.aim.Store(&frames)
	s.at.Store(&addresses)
	return nil
}

// via returns the MAC address to which a sender's frames go.
func (s *senders) via(from, to netip.Addr) net.HardwareAddr {
	const nodeBits = 24 // of podCIDRs
	subnet := netip.PrefixFrom(from, nodeBits).Masked()
	if s.routed && !subnet.Contains(to) {
		return pipeline.PodMAC(subnet.Addr().Next()) // the bridge's MAC is derived in the same way
	}
	return pipeline.PodMAC(to)
}

// aimed reports whether packets have been sent to an address since the last follow.
func (s *senders) aimed(address netip.Addr) bool {
	at := s.at.Load()
	return at != nil && slices.Contains(*at, address)
}

func (s *senders) run(ctx context.Context) {
	defer close(s.done)
	ticker := time.NewTicker(pause)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		frames := s.aim.Load()
		if frames == nil {
			continue
		}
		for i, raw := range s.raws {
			for _, frame := range (*frames)[i] {
				if err := raw.Send(frame); err != nil {
					s.err = err
					return
				}
				s.sent.Add(1)
			}
		}
	}
}

// close stops the senders. It returns the error that ended them before, if any.
func (s *senders) close() error {
	s.stop()
	<-s.done
	return errors.Join(s.err, s.closeRaws())
}

func (s *senders) closeRaws() error {
	var errs []error
	for _, raw := range s.raws {
		errs = append(errs, raw.Close())
	}
	return errors.Join(errs...)
}

// ofSenders reports whether a frame is from the senders.
func ofSenders(frame []byte) bool { return bytes.Contains(frame, []byte(markIn)) }

// ofNewPods reports whether a frame is from a pod that starts.
func ofNewPods(frame []byte) bool { return bytes.Contains(frame, []byte(markOut)) }
