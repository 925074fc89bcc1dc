package notify

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/link/rtnetlink"
)

// WatchForwarding calls changed whenever IP forwarding, or another setting of all devices that the kernel reports with it (RTM_NEWNETCONF
// of rtnetlink(7)), has changed in the calling thread's namespace, until ctx ends. New devices, such as pods', are not reported. The channel
// is closed when watching has ended, also after a socket failure.
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
		buffer := make([]byte, rtnetlink.ReceiveSize)
		for {
			size, err := socket.Read(buffer)
			switch {
			case err == nil:
				if ofAllDevices(buffer[:size]) {
					changed()
				}
			case errors.Is(err, unix.ENOBUFS), errors.Is(err, unix.EINTR): // events may be lost
				changed()
			default:
				return
			}
		}
	}()
	return ended, nil
}

// NETCONFA_IFINDEX and its value NETCONFA_IFINDEX_ALL of linux/netconf.h, and the padded size of struct netconfmsg.
const (
	netconfIndex  = 1
	netconfAll    = -1
	netconfHeader = 4
)

// ofAllDevices reports whether a datagram has a message about the settings of all devices, or one that cannot be parsed.
func ofAllDevices(datagram []byte) bool {
	messages, err := syscall.ParseNetlinkMessage(datagram)
	if err != nil {
		return true
	}
	return slices.ContainsFunc(messages, func(message syscall.NetlinkMessage) bool {
		if len(message.Data) < netconfHeader || !rtnetlink.WellFormed(message.Data[netconfHeader:]) {
			return true
		}
		index := rtnetlink.ByType(message.Data[netconfHeader:])[netconfIndex]
		return len(index) != 4 || int32(binary.NativeEndian.Uint32(index)) == netconfAll
	})
}
