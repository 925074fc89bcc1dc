package firstpacket

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"weft.dev/weft/internal/overlay/pipeline"
	"weft.dev/weft/lab"
	"weft.dev/weft/test/hostile"
	"weft.dev/weft/test/traffic"
)

const (
	// ahead is how many addresses are shot at beside the one of the pod that starts: those that pods get next.
	ahead = 4
	// pause is how long each shooter rests after it has shot at all of them.
	pause = 2 * time.Millisecond
	// discard is the port that they are sent to (RFC 863).
	discard = 9
)

// Marks of packets: a sniffer finds them by these.
const (
	markIn   = "honest-first-" // of those that are sent to pods that start
	markOut  = "fresh-pod-"
	markNode = "node-to-its-own-pod"
)

// shooters are pods that send to addresses which pods are about to get, from before they have them.
type shooters struct {
	raws []*traffic.Raw
	ends []hostile.End
	// aim holds the frames, each shooter's.
	aim  atomic.Pointer[[][][]byte]
	at   atomic.Pointer[[]netip.Addr]
	sent atomic.Int64
	stop context.CancelFunc
	done chan struct{}
	err  error
}

func newShooters(ctx context.Context, pods []*lab.Pod) (*shooters, error) {
	s := &shooters{done: make(chan struct{})}
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
func (s *shooters) follow(last netip.Addr) error {
	addresses := []netip.Addr{last}
	for next := last.Next(); len(addresses) <= ahead; next = next.Next() {
		addresses = append(addresses, next)
	}
	frames := make([][][]byte, len(s.ends))
	for i, from := range s.ends {
		for _, to := range addresses {
			f, err := hostile.Honest(fmt.Sprintf("first-%d", i), from, pipeline.PodMAC(to), netip.AddrPortFrom(to, discard))
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

// aimed reports whether an address has been shot at since the last follow.
func (s *shooters) aimed(address netip.Addr) bool {
	at := s.at.Load()
	return at != nil && slices.Contains(*at, address)
}

func (s *shooters) run(ctx context.Context) {
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

// close ends the shooting. Its error is what ended it before.
func (s *shooters) close() error {
	s.stop()
	<-s.done
	return errors.Join(s.err, s.closeRaws())
}

func (s *shooters) closeRaws() error {
	var errs []error
	for _, raw := range s.raws {
		errs = append(errs, raw.Close())
	}
	return errors.Join(errs...)
}

// ofShooters reports whether a frame is one of theirs.
func ofShooters(frame []byte) bool { return bytes.Contains(frame, []byte(markIn)) }

// ofFresh reports whether a frame is what a pod that starts has sent.
func ofFresh(frame []byte) bool { return bytes.Contains(frame, []byte(markOut)) }
