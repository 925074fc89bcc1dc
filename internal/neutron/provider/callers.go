package provider

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Listen configures where the provider listens and which callers it serves.
type Listen struct {
	// Address is host:port, or unix:PATH.
	Address string
	// UIDs may call by loopback and unix sockets; default: root.
	UIDs []uint32
	// CertFile, KeyFile and ClientCAFile are needed for every address that is neither loopback nor unix.
	CertFile, KeyFile, ClientCAFile string
	Log                             *slog.Logger
}

var errOpen = errors.New("the interface moves pods' interfaces and needs mutual TLS where other machines reach it: " +
	"give --tls-cert, --tls-key and --client-ca, or listen on a loopback address or a unix socket")

// Open listens. The returned TLS configuration is nil for loopback and unix sockets, where callers are checked by uid.
func (l Listen) Open() (net.Listener, *tls.Config, error) {
	if len(l.UIDs) == 0 {
		l.UIDs = []uint32{0}
	}
	if path, ok := strings.CutPrefix(l.Address, "unix:"); ok {
		return l.unix(path)
	}
	host, _, err := net.SplitHostPort(l.Address)
	if err != nil {
		return nil, nil, fmt.Errorf("listen address %q: give HOST:PORT or unix:PATH: %w", l.Address, err)
	}
	secure, err := l.tls()
	if err != nil {
		return nil, nil, err
	}
	ip, err := netip.ParseAddr(host)
	loopback := err == nil && ip.IsLoopback()
	if !loopback && secure == nil {
		return nil, nil, fmt.Errorf("listen on %q: %w", l.Address, errOpen)
	}
	in, err := net.Listen("tcp", l.Address)
	if err != nil {
		return nil, nil, fmt.Errorf("listen: %w", err)
	}
	if secure != nil {
		return in, secure, nil
	}
	return &checked{Listener: in, uids: l.UIDs, uid: tcpUID, log: l.Log}, nil, nil
}

func (l Listen) unix(path string) (net.Listener, *tls.Config, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, nil, fmt.Errorf("make the folder of %s: %w", path, err)
	}
	if info, err := os.Lstat(path); err == nil && info.Mode()&os.ModeSocket != 0 {
		if err := os.Remove(path); err != nil { // of a process that has ended
			return nil, nil, fmt.Errorf("replace %s: %w", path, err)
		}
	}
	in, err := net.Listen("unix", path)
	if err != nil {
		return nil, nil, fmt.Errorf("listen: %w", err)
	}
	if err := os.Chmod(path, 0o666); err != nil { // callers are checked by their uid
		return nil, nil, errors.Join(fmt.Errorf("open %s to callers: %w", path, err), in.Close())
	}
	return &checked{Listener: in, uids: l.UIDs, uid: unixUID, log: l.Log}, nil, nil
}

func (l Listen) tls() (*tls.Config, error) {
	if l.CertFile == "" && l.KeyFile == "" && l.ClientCAFile == "" {
		return nil, nil
	}
	if l.CertFile == "" || l.KeyFile == "" || l.ClientCAFile == "" {
		return nil, errors.New("mutual TLS needs all of --tls-cert, --tls-key and --client-ca")
	}
	pair, err := tls.LoadX509KeyPair(l.CertFile, l.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("load the provider's certificate: %w", err)
	}
	pem, err := os.ReadFile(l.ClientCAFile)
	if err != nil {
		return nil, fmt.Errorf("load the authority of clients: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s holds no PEM certificate", l.ClientCAFile)
	}
	return &tls.Config{
		Certificates: []tls.Certificate{pair}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS12,
		NextProtos: []string{"h2"},
	}, nil
}

// checked is a listener that accepts only callers with certain uids.
type checked struct {
	net.Listener

	uids []uint32
	uid  func(net.Conn) (uint32, error)
	log  *slog.Logger
}

// Accept drops connections of other users.
func (c *checked) Accept() (net.Conn, error) {
	for {
		conn, err := c.Listener.Accept()
		if err != nil {
			return nil, err
		}
		uid, err := c.uid(conn)
		if err == nil && slices.Contains(c.uids, uid) {
			return conn, nil
		}
		_ = conn.Close()
		if c.log != nil {
			c.log.Warn("caller refused", "peer", conn.RemoteAddr().String(), "uid", uid, "error", err)
		}
	}
}

// tcpUID finds the owner of the other end of a loopback connection by inet_diag, in this network namespace.
func tcpUID(conn net.Conn) (uint32, error) {
	sock, err := netlink.SocketGet(conn.RemoteAddr(), conn.LocalAddr())
	if err != nil {
		return 0, fmt.Errorf("find the caller's socket: %w", err)
	}
	// The kernel reports uid 0 for closed sockets: without this check, a caller that sends and closes would count as root.
	if sock.State != netlink.TCP_ESTABLISHED || sock.INode == 0 {
		return 0, errClosed
	}
	return sock.UID, nil
}

var errClosed = errors.New("the caller has closed its socket")

func unixUID(conn net.Conn) (uint32, error) {
	c, ok := conn.(*net.UnixConn)
	if !ok {
		return 0, errors.New("not a unix socket")
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, fmt.Errorf("ask for the caller: %w", err)
	}
	var cred *unix.Ucred
	if ctrlErr := raw.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); ctrlErr != nil || err != nil {
		return 0, fmt.Errorf("ask for the caller: %w", errors.Join(ctrlErr, err))
	}
	return cred.Uid, nil
}
