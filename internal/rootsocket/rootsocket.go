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
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/cni/rootdir"
)

// refusalTimeout is how long a peer that may not be here has to send its request, and then to read the refusal.
// Nobody else waits for it.
const refusalTimeout = 100 * time.Millisecond

// Listener is a unix socket that takes connections of one user only.
type Listener struct {
	path    string
	uid     uint32
	refusal Refusal

	mu     sync.Mutex
	socket *net.UnixListener
	// made is the socket's file, and dir the folder that it is in.
	made   os.FileInfo
	dir    *os.File
	closed bool
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
	l := &Listener{path: path, dir: dir, uid: uid, refusal: refusal}
	if l.socket, l.made, err = bind(path); err != nil {
		return nil, errors.Join(fmt.Errorf("socket %s: %w", path, err), dir.Close())
	}
	return l, nil
}

// Renew makes the socket again if its file or its folder has been removed or replaced, and reports whether it did. Connections that are
// open stay, and Accept goes on with the new socket.
func (l *Listener) Renew() (renewed bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || l.stands() {
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

// stands reports whether the socket's file is where it was made. The caller holds mu.
func (l *Listener) stands() bool {
	info, err := os.Lstat(l.path)
	return err == nil && os.SameFile(info, l.made) && isAt(l.dir, filepath.Dir(l.path))
}

// isAt reports whether an open folder is the one at path.
func isAt(dir *os.File, path string) bool {
	have, err := dir.Stat()
	there, missing := os.Lstat(path)
	return err == nil && missing == nil && os.SameFile(have, there)
}

// Addr returns the address of the socket.
func (l *Listener) Addr() net.Addr { return &net.UnixAddr{Name: l.path, Net: "unix"} }

// current returns the socket that connections come by now, nil once the listener is closed.
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

// Accept returns the next connection of the user that is allowed. Others are told so and cut off before a byte of
// theirs is read.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		socket := l.current()
		if socket == nil {
			return nil, fmt.Errorf("socket %s: %w", l.path, net.ErrClosed)
		}
		conn, err := socket.AcceptUnix()
		if err != nil && errors.Is(err, net.ErrClosed) && l.current() != socket {
			continue // it was made again, or the listener is closed
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

// Close removes the socket and gives the directory up.
func (l *Listener) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return fmt.Errorf("socket %s: %w", l.path, net.ErrClosed)
	}
	l.closed = true
	var err error
	if l.stands() {
		err = os.Remove(l.path)
	}
	return errors.Join(err, l.socket.Close(), l.dir.Close())
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
