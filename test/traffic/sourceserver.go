package traffic

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// SourceServer answers TCP connections, line by line, and UDP datagrams with its name and the client's address that it sees: a client
// detects which server answers at an address that several share.
type SourceServer struct {
	name     string
	listener net.Listener
	packets  *net.UDPConn // nil: connections only
	done     sync.WaitGroup

	mu   sync.Mutex
	open map[net.Conn]struct{}
}

// NewSourceServer starts a SourceServer in the namespace at path. A port of 0 is any, the same for TCP and UDP.
func NewSourceServer(path, name string, address netip.AddrPort) (*SourceServer, error) {
	t := &SourceServer{name: name, open: map[net.Conn]struct{}{}}
	err := in(path, func() (err error) {
		t.listener, err = net.ListenTCP("tcp", net.TCPAddrFromAddrPort(address))
		return err
	})
	if err != nil {
		return nil, err
	}
	if t.packets, err = ListenUDP(path, address); err != nil {
		return nil, errors.Join(err, t.listener.Close())
	}
	t.done.Go(t.takeConnections)
	t.done.Go(t.takePackets)
	return t, nil
}

func (t *SourceServer) takeConnections() {
	for {
		conn, err := t.listener.Accept()
		if err != nil {
			return // closed
		}
		t.mu.Lock()
		t.open[conn] = struct{}{}
		t.mu.Unlock()
		t.done.Go(func() {
			defer func() {
				t.mu.Lock()
				delete(t.open, conn)
				t.mu.Unlock()
				_ = conn.Close()
			}()
			for lines := bufio.NewScanner(conn); lines.Scan(); {
				_, _ = fmt.Fprintln(conn, t.answer(conn.RemoteAddr())) // an answer that cannot be sent is missing at the client
			}
		})
	}
}

func (t *SourceServer) takePackets() {
	buffer := make([]byte, 2048)
	for {
		_, from, err := t.packets.ReadFromUDP(buffer)
		if err != nil {
			return // closed
		}
		_, _ = t.packets.WriteToUDP([]byte(t.answer(from)), from)
	}
}

func (t *SourceServer) answer(from net.Addr) string {
	host, _, _ := net.SplitHostPort(from.String())
	return t.name + " " + host
}

// Close ends the server and its connections.
func (t *SourceServer) Close() error {
	err := t.listener.Close()
	if t.packets != nil {
		err = errors.Join(err, t.packets.Close())
	}
	t.mu.Lock()
	for conn := range t.open {
		_ = conn.Close()
	}
	t.mu.Unlock()
	t.done.Wait()
	return err
}

// Answer is a SourceServer's answer.
type Answer struct {
	// Name is the server's; Source is the client's address as the server saw it.
	Name   string
	Source netip.Addr
}

// String describes the answer.
func (a Answer) String() string { return fmt.Sprintf("%s sees %s", a.Name, a.Source) }

// Conn is a connection to a SourceServer.
type Conn struct{ conn net.Conn }

// Dial connects, by "tcp" or "udp", from the namespace at path.
func Dial(ctx context.Context, path, network string, to netip.AddrPort) (*Conn, error) {
	return dial(ctx, path, network, to, net.Dialer{})
}

// DialWaiting connects to a server that may answer late: a TCP client repeats its first packet for at most wait.
func DialWaiting(ctx context.Context, path, network string, to netip.AddrPort, wait time.Duration) (*Conn, error) {
	return dial(ctx, path, network, to, net.Dialer{Timeout: wait})
}

// DialFrom connects from a port, which other connections may have as well.
func DialFrom(ctx context.Context, path, network string, port uint16, to netip.AddrPort) (*Conn, error) {
	from := net.Dialer{Control: func(_, _ string, socket syscall.RawConn) error {
		var err error
		failed := socket.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1) })
		return errors.Join(failed, err)
	}}
	if network == "udp" {
		from.LocalAddr = &net.UDPAddr{Port: int(port)}
	} else {
		from.LocalAddr = &net.TCPAddr{Port: int(port)}
	}
	return dial(ctx, path, network, to, from)
}

func dial(ctx context.Context, path, network string, to netip.AddrPort, from net.Dialer) (*Conn, error) {
	c := &Conn{}
	err := in(path, func() (err error) {
		timeout := askWait
		if from.Timeout > 0 {
			timeout = from.Timeout
		}
		if deadline, ok := ctx.Deadline(); ok {
			timeout = min(timeout, time.Until(deadline))
		}
		// A socket has to be made on this thread: with a context that can end, dialling may use others.
		from.Timeout = timeout
		c.conn, err = from.DialContext(context.WithoutCancel(ctx), network, to.String())
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("connecting to %s: %w", to, err)
	}
	return c, nil
}

// Ask sends a line and returns the answer.
func (t *Conn) Ask() (Answer, error) { return t.ask(context.Background()) }

// ask sends a line and returns the answer, which has to come before the deadline of ctx.
func (t *Conn) ask(ctx context.Context) (Answer, error) {
	due := time.Now().Add(askWait)
	if deadline, ok := ctx.Deadline(); ok && deadline.Before(due) {
		due = deadline
	}
	if err := t.conn.SetDeadline(due); err != nil {
		return Answer{}, err
	}
	if _, err := t.conn.Write([]byte("source\n")); err != nil {
		return Answer{}, err
	}
	buffer := make([]byte, 2048)
	n, err := t.conn.Read(buffer)
	if err != nil {
		return Answer{}, err
	}
	name, source, _ := strings.Cut(strings.TrimSpace(string(buffer[:n])), " ")
	seen, err := netip.ParseAddr(source)
	return Answer{Name: name, Source: seen.Unmap()}, err
}

// Close ends the connection.
func (t *Conn) Close() error { return t.conn.Close() }

// Ask makes a new connection to a SourceServer, by "tcp" or "udp", from the namespace at path, and returns the answer. The deadline of ctx is
// that of the answer.
func Ask(ctx context.Context, path, network string, to netip.AddrPort) (Answer, error) {
	c, err := Dial(ctx, path, network, to)
	if err != nil {
		return Answer{}, err
	}
	answer, err := c.ask(ctx)
	return answer, errors.Join(err, c.Close())
}
