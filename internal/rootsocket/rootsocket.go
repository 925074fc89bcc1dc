// Package rootsocket creates the agent's unix sockets: in a directory that only its owner can enter, for connections of one user only.
package rootsocket

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/cni/rootdir"
)

// refusalTimeout is how long a forbidden peer has to send its request, and then to read the refusal. Other connections do not wait for
// this.
const refusalTimeout = 100 * time.Millisecond

// Listener is a unix socket that accepts connections of one user only.
type Listener struct {
	path    string
	uid     uint32
	refusal Refusal

	mu     sync.Mutex
	socket *net.UnixListener
	// made identifies the socket's file, and dir is the folder that contains it.
	made   os.FileInfo
	dir    *os.File
	closed bool
}

// Refusal returns the JSON body of the response to a forbidden peer.
type Refusal func(reason error) []byte

// ForbiddenError means that a peer is not the allowed user.
type ForbiddenError struct {
	// Allowed is the uid that may connect, Peer the uid of the peer.
	Allowed, Peer uint32
}

// Error implements error.
func (e *ForbiddenError) Error() string {
	return fmt.Sprintf("the weft agent serves user %d, not user %d", e.Allowed, e.Peer)
}

// Listen creates the socket at path and its directory. The directory gets mode 0700 and is locked: while this agent lives, a second agent
// on the node is refused (rootdir.ErrInUse). A socket that a dead agent left at path is replaced; another kind of file is not. The listener
// refuses connections of users other than uid.
func Listen(path string, uid uint32, refusal Refusal) (*Listener, error) {
	dir, err := rootdir.Open(filepath.Dir(path))
	if err != nil {
		return nil, fmt.Errorf("socket %s: %w", path, err)
	}
	l := &Listener{path: path, dir: dir, uid: uid, refusal: refusal}
	if l.socket, l.made, err = bind(path); err != nil {
		return nil, errors.Join(fmt.Errorf("socket %s: %w", path, err), dir.Close())
	}
	return l, nil
}

// Renew creates the socket again if its file or folder was removed or replaced, and reports whether it did. Open connections stay, and
// Accept continues with the new socket.
func (l *Listener) Renew() (renewed bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || l.isIntact() {
		return false, nil
	}
	dir := l.dir
	if !isAt(l.dir, filepath.Dir(l.path)) {
		if dir, err = rootdir.Open(filepath.Dir(l.path)); err != nil {
			return false, fmt.Errorf("socket %s: %w", l.path, err)
		}
	}
	socket, made, err := bind(l.path)
	if err != nil {
		if dir != l.dir {
			err = errors.Join(err, dir.Close())
		}
		return false, fmt.Errorf("socket %s: %w", l.path, err)
	}
	former := l.socket
	if dir != l.dir {
		err = l.dir.Close()
	}
	l.socket, l.made, l.dir = socket, made, dir
	return true, errors.Join(err, former.Close())
}

// isIntact reports whether the socket's file is still at its path. The caller holds mu.
func (l *Listener) isIntact() bool {
	info, err := os.Lstat(l.path)
	return err == nil && os.SameFile(info, l.made) && isAt(l.dir, filepath.Dir(l.path))
}

// isAt reports whether an open folder is the folder at path.
func isAt(dir *os.File, path string) bool {
	have, err := dir.Stat()
	there, missing := os.Lstat(path)
	return err == nil && missing == nil && os.SameFile(have, there)
}

// Addr returns the address of the socket.
func (l *Listener) Addr() net.Addr { return &net.UnixAddr{Name: l.path, Net: "unix"} }

// current returns the socket that accepts connections now, nil once the listener is closed.
func (l *Listener) current() *net.UnixListener {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	return l.socket
}

func bind(path string) (*net.UnixListener, os.FileInfo, error) {
	info, err := os.Lstat(path)
	switch {
	case err == nil && info.Mode()&os.ModeSocket == 0:
		return nil, nil, errors.New("another kind of file is in its place")
	case err == nil:
		if err := os.Remove(path); err != nil {
			return nil, nil, err
		}
	case !errors.Is(err, os.ErrNotExist):
		return nil, nil, err
	}
	socket, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, nil, err
	}
	socket.SetUnlinkOnClose(false) // by then another socket may be at path
	err = os.Chmod(path, 0o600)
	if err == nil {
		info, err = os.Lstat(path)
	}
	if err != nil {
		return nil, nil, errors.Join(err, socket.Close())
	}
	return socket, info, nil
}

// Accept returns the next connection of the allowed user. Other connections get a refusal and are closed, and nothing is read from them.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		socket := l.current()
		if socket == nil {
			return nil, fmt.Errorf("socket %s: %w", l.path, net.ErrClosed)
		}
		conn, err := socket.AcceptUnix()
		if err != nil && errors.Is(err, net.ErrClosed) && l.current() != socket {
			continue // the socket was created again, or the listener is closed
		}
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

// Close removes the socket and releases the directory.
func (l *Listener) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return fmt.Errorf("socket %s: %w", l.path, net.ErrClosed)
	}
	l.closed = true
	var err error
	if l.isIntact() {
		err = os.Remove(l.path)
	}
	return errors.Join(err, l.socket.Close(), l.dir.Close())
}

// peerUID returns the effective uid of the peer at connect time (SO_PEERCRED of unix(7)).
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

// refuse writes a response without reading the request, as well as that is possible. An HTTP client fails if the response arrives before it
// has sent its request, or if the connection breaks while it sends. So refuse waits for the first byte to arrive, leaves it unread, writes
// the response, and closes the connection a moment later.
func refuse(conn *net.UnixConn, body []byte) {
	defer time.AfterFunc(2*refusalTimeout, func() { _ = conn.Close() }) // the peer has no right to more time
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

// awaitInput returns when the connection has data to read, or at its deadline.
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
