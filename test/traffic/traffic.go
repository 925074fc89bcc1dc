// Package traffic sends and counts packets between network namespaces, for tests that assert what arrives and what does
// not. Its sockets are opened inside a namespace and then used from anywhere: a socket stays in the namespace it was
// opened in.
package traffic

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"golang.org/x/sys/unix"
)

// in runs f on a thread inside the network namespace at path; "" is the current one.
func in(path string, f func() error) error {
	if path == "" {
		return f()
	}
	namespace, err := ns.GetNS(path)
	if err != nil {
		return fmt.Errorf("namespace %s: %w", path, err)
	}
	defer func() { _ = namespace.Close() }()
	return namespace.Do(func(ns.NetNS) error { return f() })
}

// ListenUDP opens a UDP socket in the namespace at path.
func ListenUDP(path string, address netip.AddrPort) (*net.UDPConn, error) {
	var conn *net.UDPConn
	err := in(path, func() (err error) {
		conn, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(address))
		return err
	})
	return conn, err
}

// Echo answers UDP datagrams with what they hold, until it is closed.
type Echo struct {
	conn *net.UDPConn
	done chan struct{}

	mu      sync.Mutex
	sources map[netip.Addr]int
}

// NewEcho starts an echo in the namespace at path.
func NewEcho(path string, address netip.AddrPort) (*Echo, error) {
	conn, err := ListenUDP(path, address)
	if err != nil {
		return nil, err
	}
	if err := deepen(conn); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	e := &Echo{conn: conn, done: make(chan struct{}), sources: map[netip.Addr]int{}}
	go e.run()
	return e, nil
}

func (e *Echo) run() {
	defer close(e.done)
	buffer := make([]byte, 2048)
	for {
		n, from, err := e.conn.ReadFromUDPAddrPort(buffer)
		if err != nil {
			return // closed
		}
		e.mu.Lock()
		e.sources[from.Addr().Unmap()]++
		e.mu.Unlock()
		_, _ = e.conn.WriteToUDPAddrPort(buffer[:n], from) // what cannot be sent is missed by the other side, which counts
	}
}

// Sources returns how many datagrams came from which address.
func (e *Echo) Sources() map[netip.Addr]int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return maps.Clone(e.sources)
}

// Close ends the echo.
func (e *Echo) Close() error {
	err := e.conn.Close()
	<-e.done
	return err
}

// Ping sends datagrams to an Echo until one is answered, and returns the time between the two. It gives up at the deadline of ctx. An answer
// counts however late it is: a path that is slow is open.
func Ping(ctx context.Context, path string, to netip.AddrPort) (time.Duration, error) {
	conn, err := ListenUDP(path, netip.AddrPort{})
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close() }()
	for began := time.Now(); ; {
		took, err := once(conn, to, began)
		if err == nil {
			return took, nil
		}
		if ctx.Err() != nil {
			return 0, fmt.Errorf("no answer from %s: %w", to, errors.Join(err, ctx.Err()))
		}
	}
}

// pingWait is the time until the next datagram.
const pingWait = 200 * time.Millisecond

// once sends a datagram with the time since began, and waits for an answer to any.
func once(conn *net.UDPConn, to netip.AddrPort, began time.Time) (time.Duration, error) {
	if err := conn.SetReadDeadline(time.Now().Add(pingWait)); err != nil {
		return 0, err
	}
	message := binary.BigEndian.AppendUint64(nil, uint64(time.Since(began)))
	if _, err := conn.WriteToUDPAddrPort(message, to); err != nil {
		<-time.After(pingWait / 10) // no route yet: the caller's ctx bounds the tries
		return 0, err
	}
	if _, err := conn.Read(message); err != nil {
		return 0, err
	}
	return time.Since(began) - time.Duration(binary.BigEndian.Uint64(message)), nil
}

// Stream sends numbered datagrams at a steady rate to an Echo and counts the answers.
type Stream struct {
	conn   *net.UDPConn
	to     netip.AddrPort
	stop   chan struct{}
	sent   chan uint64
	read   chan struct{}
	mu     sync.Mutex
	seen   map[uint64]struct{}
	last   time.Time
	failed error
}

// Tally is what became of a Stream.
type Tally struct {
	Sent, Lost uint64
	// Missing are the first numbers that were lost, at most ten.
	Missing []uint64
}

// String returns the tally in words.
func (t Tally) String() string { return fmt.Sprintf("%d sent, %d lost", t.Sent, t.Lost) }

// settle is how long a stream waits for late answers after the last one: on a busy machine, an echo may wait for a processor.
const settle = 3 * time.Second

// deepen makes a socket hold 4 MiB until it is read, whatever the namespace's maximum: a process that waits for a processor loses none.
func deepen(conn *net.UDPConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var set error
	err = raw.Control(func(fd uintptr) {
		set = os.NewSyscallError("setsockopt", unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 4<<20))
	})
	return errors.Join(err, set)
}

// late is how much of what is due a stream sends when its turn comes late. A sender that waited for a processor would otherwise send
// hundreds of datagrams at once, and overrun the switch's socket: the loss would be the test's own.
const late = 20 * time.Millisecond

// NewStream starts a stream of rate datagrams a second from the namespace at path.
func NewStream(path string, to netip.AddrPort, rate int) (*Stream, error) {
	conn, err := ListenUDP(path, netip.AddrPort{})
	if err != nil {
		return nil, err
	}
	if err := deepen(conn); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	s := &Stream{
		conn: conn, to: to, stop: make(chan struct{}), sent: make(chan uint64, 1), read: make(chan struct{}),
		seen: map[uint64]struct{}{}, last: time.Now(),
	}
	go s.send(rate)
	go s.receive()
	return s, nil
}

func (s *Stream) send(rate int) {
	ticker := time.NewTicker(time.Second / time.Duration(rate))
	defer ticker.Stop()
	last, due := time.Now(), 0.0
	message := make([]byte, 8)
	var n uint64
	for {
		select {
		case <-s.stop:
			s.sent <- n
			return
		case now := <-ticker.C:
			due += min(now.Sub(last), late).Seconds() * float64(rate)
			last = now
			for ; due >= 1; n, due = n+1, due-1 {
				binary.BigEndian.PutUint64(message, n)
				if _, err := s.conn.WriteToUDPAddrPort(message, s.to); err != nil {
					s.fail(err)
				}
			}
		}
	}
}

func (s *Stream) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failed == nil {
		s.failed = err
	}
}

func (s *Stream) receive() {
	defer close(s.read)
	buffer := make([]byte, 64)
	for {
		n, err := s.conn.Read(buffer)
		if err != nil {
			if errors.Is(err, net.ErrClosed) || errors.Is(err, os.ErrDeadlineExceeded) {
				return
			}
			s.fail(err) // an ICMP error for a datagram of ours: that one is lost, the next may not be
			continue
		}
		if n == 8 {
			s.mu.Lock()
			s.seen[binary.BigEndian.Uint64(buffer)] = struct{}{}
			s.last = time.Now()
			s.mu.Unlock()
		}
	}
}

// Stop ends the stream, waits for what is still under way, and returns what became of it all. The error is the first
// that the socket met, which the tally counts as loss anyway.
func (s *Stream) Stop() (Tally, error) {
	close(s.stop)
	tally := Tally{Sent: <-s.sent}
	s.await(tally.Sent)
	_ = s.conn.Close()
	<-s.read
	s.mu.Lock()
	defer s.mu.Unlock()
	for n := range tally.Sent {
		if _, ok := s.seen[n]; !ok {
			tally.Lost++
			if len(tally.Missing) < 10 {
				tally.Missing = append(tally.Missing, n)
			}
		}
	}
	return tally, s.failed
}

// await returns when every answer is there, or when none has come for a while.
func (s *Stream) await(sent uint64) {
	ticker := time.NewTicker(settle / 20)
	defer ticker.Stop()
	stopped := time.Now()
	for now := range ticker.C {
		s.mu.Lock()
		all, quiet := uint64(len(s.seen)) == sent, now.Sub(s.last) > settle && now.Sub(stopped) > settle
		s.mu.Unlock()
		if all || quiet {
			return
		}
	}
}
