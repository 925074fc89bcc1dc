package flanneltest

import (
	"io"
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netns"
	"golang.org/x/sync/errgroup"
)

// Forward forwards connections to an address on the underlay to an address in this process's network namespace.
func (u *Underlay) Forward(listen, target string) {
	u.t.Helper()
	listener, err := listenIn(u.Space.Path(), listen)
	if err != nil {
		u.t.Fatal(err)
	}
	u.t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			near, err := listener.Accept()
			if err != nil { // closed
				return
			}
			go relay(near, target)
		}
	}()
}

func relay(near net.Conn, target string) {
	defer near.Close()
	far, err := net.Dial("tcp", target) //nolint:noctx // ends with the listener's test
	if err != nil {
		return
	}
	defer far.Close()
	var both errgroup.Group
	for _, pair := range [][2]net.Conn{{near, far}, {far, near}} {
		both.Go(func() error {
			_, err := io.Copy(pair[0], pair[1])
			_ = pair[0].Close() // this ends the other direction
			return err
		})
	}
	_ = both.Wait() // errors of connections do not matter
}

// listenIn opens a listener in another namespace.
func listenIn(path, address string) (listener net.Listener, err error) {
	inside := within(path, func() error {
		listener, err = net.Listen("tcp", address) //nolint:noctx // opens at once
		return err
	})
	return listener, inside
}

// within calls f in another namespace. What f opens stays in it.
func within(path string, f func() error) error {
	out := make(chan error, 1)
	go func() { // the thread changes its namespace and ends with the goroutine
		runtime.LockOSThread()
		handle, err := netns.GetFromPath(path)
		if err == nil {
			err = netns.Set(handle)
			_ = handle.Close()
		}
		if err == nil {
			err = f()
		}
		out <- err
	}()
	return <-out
}

// sourcePort is the port on which Source listens.
const sourcePort = "9999"

// Source sends a packet from one namespace to an address of another, and returns the source address with which it arrives.
func Source(t *testing.T, from, to *Space, address string) string {
	t.Helper()
	var receiver net.PacketConn
	var sender net.Conn
	target := net.JoinHostPort(address, sourcePort)
	if err := within(to.Path(), func() (err error) {
		receiver, err = net.ListenPacket("udp", ":"+sourcePort) //nolint:noctx // opens at once
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = receiver.Close() }()
	if err := within(from.Path(), func() (err error) {
		sender, err = net.Dial("udp", target) //nolint:noctx // opens at once
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer sender.Close()
	var source string
	Eventually(t, "packet from "+from.Name+" to "+target, func() error {
		if _, err := sender.Write([]byte("?")); err != nil {
			return err
		}
		if err := receiver.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
			return err
		}
		_, sent, err := receiver.ReadFrom(make([]byte, 1))
		if err != nil {
			return err
		}
		source, _, err = net.SplitHostPort(sent.String())
		return err
	})
	return source
}

// Drops returns the counters of a chain of table ip weft-flannel, as text.
func Drops(t *testing.T, n *Node, chain string) string {
	t.Helper()
	out, err := n.Run("nft", "list", "chain", "ip", "weft-flannel", chain)
	if err != nil {
		t.Fatal(err)
	}
	return out
}
