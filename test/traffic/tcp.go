package traffic

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"
)

// Sink takes TCP connections and answers each, once its sender has closed its side, with the SHA-256 of what came and
// the address that it came from.
type Sink struct {
	listener net.Listener
	open     sync.WaitGroup
}

// NewSink starts a sink in the namespace at path.
func NewSink(path string, address netip.AddrPort) (*Sink, error) {
	s := &Sink{}
	err := in(path, func() (err error) {
		s.listener, err = net.ListenTCP("tcp", net.TCPAddrFromAddrPort(address))
		return err
	})
	if err != nil {
		return nil, err
	}
	s.open.Go(s.run)
	return s, nil
}

func (s *Sink) run() {
	for {
		conn, err := s.listener.Accept()
		if err != nil {
			return // closed
		}
		s.open.Go(func() { serveSink(conn) })
	}
}

func serveSink(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		return
	}
	sum := sha256.New()
	if _, err := io.Copy(sum, conn); err != nil {
		return // the sender misses its answer
	}
	host, _, _ := net.SplitHostPort(conn.RemoteAddr().String())
	_, _ = fmt.Fprintf(conn, "%x %s", sum.Sum(nil), host)
}

// Close ends the sink.
func (s *Sink) Close() error {
	err := s.listener.Close()
	s.open.Wait()
	return err
}

// Transfer is what became of a Send.
type Transfer struct {
	// Bytes went over in Took, after the connection was made in Connect.
	Bytes         int
	Connect, Took time.Duration
	// Source is the sender's address as the receiver saw it.
	Source netip.Addr
}

// Send sends that many bytes from the namespace at path to a Sink, and returns an error unless all of them came, as
// they were.
func Send(ctx context.Context, path string, to netip.AddrPort, bytes int) (Transfer, error) {
	dialled := time.Now()
	var conn *net.TCPConn
	err := in(path, func() error {
		// A socket has to be made on this thread: with a context that can end, dialling may use others.
		opened, err := (&net.Dialer{Timeout: 10 * time.Second}).DialContext(context.WithoutCancel(ctx), "tcp", to.String())
		if err == nil {
			conn = opened.(*net.TCPConn) //nolint:errcheck,forcetypeassert // what dialling tcp returns
		}
		return err
	})
	if err != nil {
		return Transfer{}, fmt.Errorf("connecting to %s: %w", to, err)
	}
	defer func() { _ = conn.Close() }()
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(deadline); err != nil {
			return Transfer{}, err
		}
	}
	begin, sum := time.Now(), sha256.New()
	if err := write(conn, sum, bytes); err != nil {
		return Transfer{}, fmt.Errorf("sending %d bytes to %s: %w", bytes, to, err)
	}
	answer, err := io.ReadAll(conn)
	if err != nil {
		return Transfer{}, fmt.Errorf("the answer of %s: %w", to, err)
	}
	var have, source string
	if _, err := fmt.Sscan(string(answer), &have, &source); err != nil {
		return Transfer{}, fmt.Errorf("the answer of %s, %q: %w", to, answer, err)
	}
	if want := fmt.Sprintf("%x", sum.Sum(nil)); have != want {
		return Transfer{}, fmt.Errorf("%d bytes to %s: their sum is %s there and %s here", bytes, to, have, want)
	}
	seen, err := netip.ParseAddr(source)
	return Transfer{Bytes: bytes, Connect: begin.Sub(dialled), Took: time.Since(begin), Source: seen.Unmap()}, err
}

func write(conn *net.TCPConn, sum hash.Hash, bytes int) error {
	chunk := make([]byte, 64<<10)
	for i := range chunk {
		chunk[i] = byte(i * 7)
	}
	for bytes > 0 {
		part := chunk[:min(bytes, len(chunk))]
		_, _ = sum.Write(part) // never fails
		if _, err := conn.Write(part); err != nil {
			return errors.Join(err, conn.Close())
		}
		bytes -= len(part)
	}
	return conn.CloseWrite()
}
