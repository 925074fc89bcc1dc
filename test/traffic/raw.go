package traffic

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Raw is a packet socket on one interface: frames go out and come in as they are.
type Raw struct {
	fd    int
	index int
}

// OpenRaw opens a packet socket on an interface in the namespace at path.
func OpenRaw(path, device string) (*Raw, error) {
	r := &Raw{fd: -1}
	err := in(path, func() error {
		link, err := net.InterfaceByName(device)
		if err != nil {
			return fmt.Errorf("interface %s: %w", device, err)
		}
		r.index = link.Index
		if r.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(networkOrder(unix.ETH_P_ALL))); err != nil {
			return fmt.Errorf("packet socket: %w", err)
		}
		if err := r.tune(); err != nil {
			return err
		}
		return unix.Bind(r.fd, &unix.SockaddrLinklayer{Protocol: networkOrder(unix.ETH_P_ALL), Ifindex: link.Index})
	})
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// NewInbox starts collecting the IPv4 packets of one protocol that sockets in the namespace at path get: what its host
// takes as its own, by whatever interface it came.
func NewInbox(path string, protocol int) (*Sniffer, error) {
	r := &Raw{fd: -1}
	err := in(path, func() (err error) {
		if r.fd, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol); err != nil {
			return fmt.Errorf("raw socket: %w", err)
		}
		return r.tune()
	})
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return collect(r, false), nil
}

// tune lets the reader look up now and then, so that it can be stopped, and gives it room for bursts.
func (r *Raw) tune() error {
	err := unix.SetsockoptTimeval(r.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 50_000})
	if err = errors.Join(err, unix.SetsockoptInt(r.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20)); err != nil {
		return fmt.Errorf("packet socket: %w", err)
	}
	return nil
}

func networkOrder(v uint16) uint16 { return v<<8 | v>>8 }

// Send sends a frame.
func (r *Raw) Send(frame []byte) error {
	if err := unix.Sendto(r.fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: r.index}); err != nil {
		return fmt.Errorf("sending %d bytes: %w", len(frame), err)
	}
	return nil
}

// Close closes the socket.
func (r *Raw) Close() error {
	if r.fd < 0 {
		return nil
	}
	return unix.Close(r.fd)
}

// Sniffer collects the frames that arrive at, or leave by, an interface.
type Sniffer struct {
	raw  *Raw
	stop chan struct{}
	done chan struct{}

	mu     sync.Mutex
	frames [][]byte
}

// NewSniffer starts collecting on an interface in the namespace at path. Frames that the interface's own namespace
// sends are left out when incoming is set.
func NewSniffer(path, device string, incoming bool) (*Sniffer, error) {
	raw, err := OpenRaw(path, device)
	if err != nil {
		return nil, err
	}
	return collect(raw, incoming), nil
}

func collect(raw *Raw, incoming bool) *Sniffer {
	s := &Sniffer{raw: raw, stop: make(chan struct{}), done: make(chan struct{})}
	go s.run(incoming)
	return s
}

func (s *Sniffer) run(incoming bool) {
	defer close(s.done)
	buffer := make([]byte, 65536)
	for {
		select {
		case <-s.stop:
			return
		default:
		}
		n, from, err := unix.Recvfrom(s.raw.fd, buffer, 0)
		if err != nil {
			continue // the time-out, or the interface is down for now
		}
		if link, ok := from.(*unix.SockaddrLinklayer); ok && incoming && link.Pkttype == unix.PACKET_OUTGOING {
			continue
		}
		s.mu.Lock()
		s.frames = append(s.frames, bytes.Clone(buffer[:n]))
		s.mu.Unlock()
	}
}

// Frames returns what was collected so far.
func (s *Sniffer) Frames() [][]byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([][]byte(nil), s.frames...)
}

// Find returns the first frame that holds the bytes.
func (s *Sniffer) Find(marker []byte) ([]byte, bool) {
	for _, frame := range s.Frames() {
		if bytes.Contains(frame, marker) {
			return frame, true
		}
	}
	return nil, false
}

// Await returns the first frame that holds the bytes, waiting for it at most that long.
func (s *Sniffer) Await(marker []byte, timeout time.Duration) ([]byte, bool) {
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	deadline := time.After(timeout)
	for {
		if frame, ok := s.Find(marker); ok {
			return frame, true
		}
		select {
		case <-deadline:
			return nil, false
		case <-ticker.C:
		}
	}
}

// Close ends the collecting.
func (s *Sniffer) Close() error {
	close(s.stop)
	<-s.done
	return s.raw.Close()
}
