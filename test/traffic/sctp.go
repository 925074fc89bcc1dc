package traffic

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// NewSCTPSourceServer starts a server that answers SCTP associations in the namespace at path. The kernel needs SCTP.
func NewSCTPSourceServer(path, name string, address netip.AddrPort) (*SourceServer, error) {
	t := &SourceServer{name: name, open: map[net.Conn]struct{}{}}
	err := in(path, func() error {
		socket, err := sctpSocket()
		if err != nil {
			return err
		}
		defer func() { _ = socket.Close() }() // the listener has a copy
		number := int(socket.Fd())
		if err := unix.Bind(number, sockaddr(address)); err != nil {
			return fmt.Errorf("bind SCTP to %s: %w", address, err)
		}
		if err := unix.Listen(number, 16); err != nil {
			return fmt.Errorf("listen by SCTP at %s: %w", address, err)
		}
		t.listener, err = net.FileListener(socket)
		return err
	})
	if err != nil {
		return nil, err
	}
	t.done.Go(t.takeConnections)
	return t, nil
}

// AskSCTP makes an association with a SourceServer from the namespace at path, and returns the answer.
func AskSCTP(ctx context.Context, path string, to netip.AddrPort) (Answer, error) {
	c := &Conn{}
	err := in(path, func() error {
		socket, err := sctpSocket()
		if err != nil {
			return err
		}
		defer func() { _ = socket.Close() }()
		wait := askWait
		if deadline, ok := ctx.Deadline(); ok {
			wait = min(wait, time.Until(deadline))
		}
		limit := unix.NsecToTimeval(max(wait, time.Millisecond).Nanoseconds())
		if err := unix.SetsockoptTimeval(int(socket.Fd()), unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit); err != nil {
			return fmt.Errorf("bound the wait for an association: %w", err)
		}
		if err := unix.Connect(int(socket.Fd()), sockaddr(to)); err != nil {
			return fmt.Errorf("connect by SCTP to %s: %w", to, err)
		}
		c.conn, err = net.FileConn(socket)
		return err
	})
	if err != nil {
		return Answer{}, err
	}
	answer, err := c.ask(ctx)
	return answer, errors.Join(err, c.Close())
}

// sctpSocket makes a socket of the one-to-one style (RFC 6458, section 4), which net handles as it does TCP's.
func sctpSocket() (*os.File, error) {
	number, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP)
	if err != nil {
		return nil, fmt.Errorf("a socket for SCTP: %w", err)
	}
	return os.NewFile(uintptr(number), "sctp"), nil
}

func sockaddr(address netip.AddrPort) *unix.SockaddrInet4 {
	return &unix.SockaddrInet4{Port: int(address.Port()), Addr: address.Addr().As4()}
}
