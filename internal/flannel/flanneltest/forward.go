package flanneltest

import (
	"io"
	"net"
	"runtime"

	"github.com/vishvananda/netns"
	"golang.org/x/sync/errgroup"
)

// Forward has connections to an address on the underlay lead to one of this process's own network namespace.
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
			_ = pair[0].Close() // the other direction ends with it
			return err
		})
	}
	_ = both.Wait() // connections end as they like
}

// listenIn opens a listener in another namespace.
func listenIn(path, address string) (net.Listener, error) {
	type opened struct {
		listener net.Listener
		err      error
	}
	out := make(chan opened, 1)
	go func() { // the thread changes its namespace and ends with the goroutine
		runtime.LockOSThread()
		handle, err := netns.GetFromPath(path)
		if err == nil {
			err = netns.Set(handle)
			_ = handle.Close()
		}
		if err != nil {
			out <- opened{nil, err}
			return
		}
		listener, err := net.Listen("tcp", address) //nolint:noctx // opens at once
		out <- opened{listener, err}
	}()
	o := <-out
	return o.listener, o.err
}
