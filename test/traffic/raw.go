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
func OpenRaw(path, device string) (*Raw, error) { return openRaw(path, Capture{Device: device}) }

func openRaw(path string, capture Capture) (*Raw, error) {
	r := &Raw{fd: -1}
	err := in(path, func() error {
		if capture.Device != "" {
			link, err := net.InterfaceByName(capture.Device)
			if err != nil {
				return fmt.Errorf("interface %s: %w", capture.Device, err)
			}
			r.index = link.Index
		}
		var err error
		if r.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(networkOrder(unix.ETH_P_ALL))); err != nil {
			return fmt.Errorf("packet socket: %w", err)
		}
		if err := r.tune(); err != nil {
			return err
		}
		if err := r.exceptPort(capture.ExceptPort); err != nil {
			return err
		}
		return unix.Bind(r.fd, &unix.SockaddrLinklayer{Protocol: networkOrder(unix.ETH_P_ALL), Ifindex: r.index})
	})
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// NewInbox starts collecting the IPv4 packets of one protocol that sockets in the namespace at path get: what its host
// takes as its own, by whatever interface it came. Keep says which are collected; nil: all.
func NewInbox(path string, protocol int, keep func(packet []byte) bool) (*Sniffer, error) {
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
	return collect(r, Capture{Keep: keep}), nil
}

// tune lets the reader look up now and then, so that it can be stopped, and gives it room for bursts.
func (r *Raw) tune() error {
	err := unix.SetsockoptTimeval(r.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 50_000})
	if err = errors.Join(err, unix.SetsockoptInt(r.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20)); err != nil {
		return fmt.Errorf("packet socket: %w", err)
	}
	return nil
}

// exceptPort has the kernel leave out UDP datagrams from and to a port, also those within VXLAN: what a load sends would
// otherwise cost the reader its time. Offsets are those of IPv4 without options behind an Ethernet header.
func (r *Raw) exceptPort(port uint16) error {
	if port == 0 {
		return nil
	}
	const (
		half, octet   = unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, unix.BPF_LD | unix.BPF_B | unix.BPF_ABS
		equal, finish = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, unix.BPF_RET | unix.BPF_K
		vxlan         = 4789
	)
	filter := []unix.SockFilter{
		{Code: half, K: 12},
		{Code: equal, K: unix.ETH_P_IP, Jf: 11},
		{Code: octet, K: 23},
		{Code: equal, K: unix.IPPROTO_UDP, Jf: 9},
		{Code: half, K: 34},
		{Code: equal, K: uint32(port), Jt: 8},
		{Code: half, K: 36},
		{Code: equal, K: uint32(port), Jt: 6},
		{Code: equal, K: vxlan, Jf: 4},
		{Code: half, K: 84},
		{Code: equal, K: uint32(port), Jt: 3}, // behind the tunnel's 50 bytes
		{Code: half, K: 86},
		{Code: equal, K: uint32(port), Jt: 1},
		{Code: finish, K: 1 << 16},
		{Code: finish, K: 0},
	}
	program := &unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.SetsockoptSockFprog(r.fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, program); err != nil {
		return fmt.Errorf("packet socket: filter: %w", err)
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

// Capture says what a sniffer collects.
type Capture struct {
	// Device is the interface. Empty: every interface of the namespace, also those that come later.
	Device string
	// Incoming leaves out what the interface's own namespace sends.
	Incoming bool
	// Except, if not 0, is the index of an interface that is left out.
	Except int
	// ExceptPort, if not 0, is a UDP port whose datagrams the kernel leaves out, also those within VXLAN.
	ExceptPort uint16
	// Keep says which frames are collected. Nil: all.
	Keep func(frame []byte) bool
}

// wants reports whether a frame is to be collected.
func (e *Capture) wants(frame []byte, from unix.Sockaddr) bool {
	if link, ok := from.(*unix.SockaddrLinklayer); ok {
		if e.Incoming && link.Pkttype == unix.PACKET_OUTGOING || e.Except != 0 && link.Ifindex == e.Except {
			return false
		}
	}
	return e.Keep == nil || e.Keep(frame)
}

// NewSniffer starts collecting on an interface in the namespace at path. Frames that the interface's own namespace
// sends are left out when incoming is set.
func NewSniffer(path, device string, incoming bool) (*Sniffer, error) {
	return Listen(path, Capture{Device: device, Incoming: incoming})
}

// Listen starts collecting in the namespace at path.
func Listen(path string, capture Capture) (*Sniffer, error) {
	raw, err := openRaw(path, capture)
	if err != nil {
		return nil, err
	}
	return collect(raw, capture), nil
}

func collect(raw *Raw, capture Capture) *Sniffer {
	s := &Sniffer{raw: raw, stop: make(chan struct{}), done: make(chan struct{})}
	go s.run(capture)
	return s
}

func (s *Sniffer) run(capture Capture) {
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
		if !capture.wants(buffer[:n], from) {
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

// Take returns what was collected so far, and forgets it.
func (s *Sniffer) Take() [][]byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	frames := s.frames
	s.frames = nil
	return frames
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
