// Package rootsocket makes the agent's unix sockets: in a directory that nobody but its owner may enter, for connections of
// one user only.
package rootsocket

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/cni/rootdir"
)

// refusalTimeout is how long a peer that may not be here has to send its request, and then to read the refusal.
// Nobody else waits for it.
const refusalTimeout = 100 * time.Millisecond

// Listener is a unix socket that takes connections of one user only.
type Listener struct {
	*net.UnixListener

	dir     *os.File
	uid     uint32
	refusal Refusal
}

// Refusal returns the body, JSON, that a peer is answered who may not connect.
type Refusal func(reason error) []byte

// ForbiddenError says that a peer is another user than the one who may connect.
type ForbiddenError struct {
	// Allowed is the uid that may connect, Peer the one that did.
	Allowed, Peer uint32
}

// Error implements error.
func (e *ForbiddenError) Error() string {
	return fmt.Sprintf("the weft agent serves user %d, not user %d", e.Allowed, e.Peer)
}

// Listen makes the socket at path and the directory it is in. The directory gets mode 0700 and is locked: a
// second agent on the node is refused (rootdir.ErrInUse) while this one lives. What an agent that has died left
// at path is replaced, if it is a socket. Connections of others than the user uid are refused by the listener.
func Listen(path string, uid uint32, refusal Refusal) (*Listener, error) {
	dir, err := rootdir.Open(filepath.Dir(path))
	if err != nil {
		return nil, fmt.Errorf("socket %s: %w", path, err)
	}
	socket, err := bind(path)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("socket %s: %w", path, err), dir.Close())
	}
	return &Listener{UnixListener: socket, dir: dir, uid: uid, refusal: refusal}, nil
}

func bind(path string) (*net.UnixListener, error) {
	info, err := os.Lstat(path)
	switch {
	case err == nil && info.Mode()&os.ModeSocket == 0:
		return nil, errors.New("something that is no socket is in its place")
	case err == nil:
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	case !errors.Is(err, os.ErrNotExist):
		return nil, err
	}
	socket, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(err, socket.Close())
	}
	return socket, nil
}

// Accept returns the next connection of the user that is allowed. Others are told so and cut off before a byte of
// theirs is read.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		conn, err := l.AcceptUnix()
		if err != nil {
			return nil, err
		}
		uid, err := peerUID(conn)
		if err == nil && uid == l.uid {
			return conn, nil
		}
		if err == nil {
			err = &ForbiddenError{Allowed: l.uid, Peer: uid}
		}
		go refuse(conn, l.refusal(err))
	}
}

// Close removes the socket and gives the directory up.
func (l *Listener) Close() error {
	return errors.Join(l.UnixListener.Close(), l.dir.Close())
}

// peerUID asks the kernel who is at the other end (SO_PEERCRED of unix(7)): the effective uid at connect time.
func peerUID(conn *net.UnixConn) (uint32, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, fmt.Errorf("peer of the socket: %w", err)
	}
	var cred *unix.Ucred
	var credErr error
	err = raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) //nolint:gosec // File descriptors fit.
	})
	if err := errors.Join(err, credErr); err != nil {
		return 0, fmt.Errorf("peer of the socket: %w", err)
	}
	return cred.Uid, nil
}

// refuse answers a connection without reading from it, as well as that works. An HTTP client wants the answer
// neither before it has sent its request nor in the form of a broken pipe while it does: the answer waits for the
// first byte to arrive, which stays unread, and the connection is closed a moment after it.
func refuse(conn *net.UnixConn, body []byte) {
	defer time.AfterFunc(2*refusalTimeout, func() { _ = conn.Close() }) // Nobody is owed anything here.
	if conn.SetDeadline(time.Now().Add(refusalTimeout)) != nil {
		return
	}
	awaitInput(conn)
	if conn.SetDeadline(time.Now().Add(refusalTimeout)) != nil {
		return
	}
	_, _ = fmt.Fprintf(conn, "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s",
		http.StatusForbidden, http.StatusText(http.StatusForbidden), len(body), body)
	_ = conn.CloseWrite()
}

// awaitInput returns when something could be read from the connection, at its deadline at the latest.
func awaitInput(conn *net.UnixConn) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Read(func(fd uintptr) bool {
		waiting, err := unix.IoctlGetInt(int(fd), unix.TIOCINQ) //nolint:gosec // File descriptors fit.
		return err != nil || waiting > 0
	})
}
