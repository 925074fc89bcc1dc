package provider

import (
	"errors"
	"net"
	"os"
	"testing"
)

// The owner of the other end of a TCP connection is known while its socket is open. Of a socket that is closed the kernel reports no owner, or
// uid 0: such a caller counts as unknown, and not as root.
func TestOwnerOfClosedSocket(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	pair := func() (caller *net.TCPConn, accepted net.Conn) {
		t.Helper()
		conn, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		accepted, err = listener.Accept()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _, _ = conn.Close(), accepted.Close() })
		caller, _ = conn.(*net.TCPConn)
		return caller, accepted
	}
	_, accepted := pair()
	if uid, err := tcpUID(accepted); err != nil || int(uid) != os.Getuid() {
		t.Errorf("the caller's uid: %d, %v; it is %d", uid, err, os.Getuid())
	}
	// Closed, while the other end is not: the kernel keeps a socket without an owner.
	caller, accepted := pair()
	if _, err := caller.Write([]byte("PRI")); err != nil {
		t.Fatal(err)
	}
	if err := caller.Close(); err != nil {
		t.Fatal(err)
	}
	if uid, err := tcpUID(accepted); !errors.Is(err, errClosed) {
		t.Errorf("the uid of a caller that has closed its socket: %d, %v", uid, err)
	}
	// Reset: the kernel has no socket any more.
	caller, accepted = pair()
	if err := errors.Join(caller.SetLinger(0), caller.Close()); err != nil {
		t.Fatal(err)
	}
	if uid, err := tcpUID(accepted); err == nil {
		t.Errorf("the uid of a caller whose connection was reset: %d", uid)
	}
}

// A listener serves the connections after one whose caller cannot be found.
func TestUnknownCallerIsDropped(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	listener := &checked{Listener: inner, uids: []uint32{0, uint32(os.Getuid())}, uid: tcpUID} //nolint:gosec // uids have 32 bits
	defer func() { _ = listener.Close() }()
	first, err := net.Dial("tcp", inner.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second, err := net.Dial("tcp", inner.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = second.Close() }()
	accepted, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = accepted.Close() }()
	if accepted.RemoteAddr().String() != second.LocalAddr().String() {
		t.Errorf("accepted %s, which is closed; want %s", accepted.RemoteAddr(), second.LocalAddr())
	}
}
