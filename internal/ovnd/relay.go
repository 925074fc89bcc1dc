package ovnd

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Kinds of sockets that guards relay: of the cluster, of clients, and of the server's control commands.
const (
	raftChannel    = "raft"
	clientChannel  = "sock"
	controlChannel = "ctl"
)

// channel is a socket of a server that the guards relay to the other servers. Its name is the protocol (ALPN) of the relay's connections.
type channel struct {
	db   Database
	kind string
}

func (c channel) String() string { return string(c.db) + "." + c.kind }

func channels() []channel {
	var all []channel
	for _, db := range []Database{NorthboundDB, SouthboundDB} {
		for _, kind := range []string{raftChannel, clientChannel, controlChannel} {
			all = append(all, channel{db, kind})
		}
	}
	return all
}

// relayed is the socket at which the guard relays a channel of another server.
func (o Options) relayed(c channel, server int) string {
	return o.run(fmt.Sprintf("%s-%d.%s", c.db, server, c.kind))
}

// served is this server's own socket of a channel.
func (o Options) served(c channel) string {
	if c.kind == raftChannel {
		return o.relayed(c, o.Server)
	}
	return o.run(c.String())
}

// Limits of the relay's connections. A dead node is noticed by relayDead, since ovsdb-server does not probe Unix sockets.
const (
	relayDead    = 8 * time.Second
	relayConnect = 5 * time.Second
)

var (
	errNoPeer     = errors.New("its guard has not published its address yet")
	errProtocol   = errors.New("no protocol of the relay")
	errHandshakes = errors.New("too many unfinished handshakes")
)

// relay connects the servers of a cluster, from one guard to the others, with TLS. ovsdb-server has one list of trusted certificates for its
// clients and its cluster, so over TLS of its own a client could join the cluster. The relay trusts the servers' certificates only.
type relay struct {
	options Options
	own     tls.Certificate
	log     *slog.Logger
	group   sync.WaitGroup
	// unfinished are the handshakes of other guards, and of clients that are none.
	unfinished handshakes

	mu    sync.Mutex
	peers map[int]peer
}

type peer struct {
	address     string
	certificate []byte
}

func newRelay(o Options, log *slog.Logger) (*relay, error) {
	own, err := tls.LoadX509KeyPair(filepath.Join(o.StateDir, CertificateFile), filepath.Join(o.StateDir, KeyFile))
	if err != nil {
		return nil, fmt.Errorf("keys for OVN: %w", err)
	}
	return &relay{options: o, own: own, log: log, peers: map[int]peer{}}, nil
}

// know sets the addresses and certificates of the other servers, from the ConfigMap of the databases.
func (r *relay) know(data map[string]string) {
	peers := map[int]peer{}
	for _, other := range r.options.others() {
		address := data[serverKey(relayKey, other)]
		if address == "" {
			continue
		}
		certificate, err := checkShown([]byte(data[serverKey(certificateKey, other)]), serverKey(serverName, other))
		if err != nil {
			r.log.Warn("a server is not trusted", "server", other, "error", err)
			continue
		}
		peers[other] = peer{address, certificate}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.peers = peers
}

func (r *relay) peer(server int) (peer, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p, ok := r.peers[server]
	return p, ok
}

// trusted returns the certificates of the other servers.
func (r *relay) trusted() *x509.CertPool {
	r.mu.Lock()
	defer r.mu.Unlock()
	pool := x509.NewCertPool()
	for _, p := range r.peers {
		pool.AppendCertsFromPEM(p.certificate)
	}
	return pool
}

// start relays until ctx ends; wait returns then.
func (r *relay) start(ctx context.Context) error {
	var listeners []net.Listener
	config := net.ListenConfig{Control: boundLoss, KeepAliveConfig: keepAlive()}
	outside, err := config.Listen(ctx, "tcp", netip.AddrPortFrom(r.options.Address, r.options.RelayPort).String())
	if err != nil {
		return fmt.Errorf("relay for the other servers: %w", err)
	}
	listeners = append(listeners, outside)
	r.group.Go(func() { r.accept(ctx, outside, r.serve) })
	for _, other := range r.options.others() {
		for _, c := range channels() {
			inside, err := listenUnix(ctx, r.options.relayed(c, other))
			if err != nil {
				closeAll(listeners)
				return err
			}
			listeners = append(listeners, inside)
			r.group.Go(func() {
				r.accept(ctx, inside, func(ctx context.Context, conn net.Conn) error { return r.forward(ctx, conn, c, other) })
			})
		}
	}
	context.AfterFunc(ctx, func() { closeAll(listeners) })
	return nil
}

func (r *relay) wait() { r.group.Wait() }

func closeAll(listeners []net.Listener) {
	for _, l := range listeners {
		_ = l.Close() // nothing is written
	}
}

func listenUnix(ctx context.Context, path string) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("relay to the other servers: %w", err)
	}
	l, err := new(net.ListenConfig).Listen(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("relay to the other servers: %w", err)
	}
	return l, nil
}

// accept handles each connection until the listener is closed.
func (r *relay) accept(ctx context.Context, l net.Listener, handle func(context.Context, net.Conn) error) {
	for {
		conn, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		} else if err != nil { // of one connection, or of too many
			r.log.WarnContext(ctx, "the relay accepts no connection", "error", err)
			select {
			case <-ctx.Done():
			case <-time.After(retryAfter):
			}
			continue
		}
		r.group.Go(func() {
			defer func() { _ = conn.Close() }()
			if err := handle(ctx, conn); err != nil && ctx.Err() == nil {
				r.log.DebugContext(ctx, "a connection is not relayed", "at", l.Addr().String(), "error", err)
			}
		})
	}
}

// serve connects another guard to this server.
func (r *relay) serve(ctx context.Context, conn net.Conn) error {
	secured := tls.Server(conn, &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{r.own}, NextProtos: protocols(),
		ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: r.trusted(),
	})
	limited, cancel := context.WithTimeout(ctx, relayConnect)
	defer cancel()
	client := clientOf(conn)
	shaking, stop := context.WithCancelCause(limited)
	defer stop(nil)
	begun := r.unfinished.begin(client, func() { stop(errHandshakes) })
	err := secured.HandshakeContext(shaking)
	r.unfinished.end(begun)
	if err != nil && errors.Is(context.Cause(shaking), errHandshakes) {
		err = errHandshakes
	}
	if err != nil {
		if count := r.unfinished.refuse(time.Now()); count > 0 {
			r.log.WarnContext(ctx, "a connection of no server is refused", "from", client.String(), "error", err, "since_last_message", count)
		}
		return nil
	}
	for _, c := range channels() {
		if c.String() != secured.ConnectionState().NegotiatedProtocol {
			continue
		}
		own, err := new(net.Dialer).DialContext(limited, "unix", r.options.served(c))
		if err != nil {
			return fmt.Errorf("connect to this server: %w", err)
		}
		join(ctx, secured, own)
		return nil
	}
	return errProtocol
}

// forward connects a program here to another server.
func (r *relay) forward(ctx context.Context, conn net.Conn, c channel, server int) error {
	p, ok := r.peer(server)
	if !ok {
		return fmt.Errorf("connect to server %d: %w", server, errNoPeer)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(p.certificate)
	dialer := tls.Dialer{
		NetDialer: &net.Dialer{Control: boundLoss, KeepAliveConfig: keepAlive()},
		Config: &tls.Config{
			MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{r.own}, NextProtos: []string{c.String()}, RootCAs: roots, ServerName: serverName,
		},
	}
	limited, cancel := context.WithTimeout(ctx, relayConnect)
	defer cancel()
	secured, err := dialer.DialContext(limited, "tcp", p.address)
	if err != nil {
		return fmt.Errorf("connect to server %d: %w", server, err)
	}
	join(ctx, secured, conn)
	return nil
}

func protocols() []string {
	var all []string
	for _, c := range channels() {
		all = append(all, c.String())
	}
	return all
}

// join copies in both directions until one ends, and closes both connections.
func join(ctx context.Context, a, b net.Conn) {
	end := func() {
		_ = a.Close()
		_ = b.Close()
	}
	defer context.AfterFunc(ctx, end)()
	var copying sync.WaitGroup
	for _, pair := range [][2]net.Conn{{a, b}, {b, a}} {
		copying.Go(func() {
			_, _ = io.Copy(pair[0], pair[1]) // an error ends the connection for both programs, as for any other
			end()
		})
	}
	copying.Wait()
}

func keepAlive() net.KeepAliveConfig {
	return net.KeepAliveConfig{Enable: true, Idle: relayDead / 2, Interval: relayDead / 8, Count: 4}
}

// boundLoss ends a connection whose packets are not acknowledged (TCP_USER_TIMEOUT, tcp(7)): probes are not sent while data waits.
func boundLoss(_, _ string, conn syscall.RawConn) error {
	var failed error
	err := conn.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(relayDead.Milliseconds()))
	})
	return errors.Join(err, failed)
}
