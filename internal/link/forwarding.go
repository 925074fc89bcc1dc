package link

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// WatchForwarding calls changed whenever IP forwarding, or another setting that the kernel reports with it (RTM_NEWNETCONF of
// rtnetlink(7)), has changed in the calling thread's namespace, until ctx ends. The channel is closed when watching has ended, also after a
// socket failure.
func WatchForwarding(ctx context.Context, changed func()) (<-chan struct{}, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("watching forwarding: %w", err)
	}
	const groups = 1 << (unix.RTNLGRP_IPV4_NETCONF - 1)
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups}); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("watching forwarding: %w", err)
	}
	socket := os.NewFile(uintptr(fd), "rtnetlink netconf")
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() { socket.Close() })
	go func() {
		defer close(ended)
		defer socket.Close()
		defer stop()
		buffer := make([]byte, receiveSize)
		for {
			_, err := socket.Read(buffer)
			if err != nil && !errors.Is(err, unix.ENOBUFS) && !errors.Is(err, unix.EINTR) {
				return
			}
			changed()
		}
	}()
	return ended, nil
}
