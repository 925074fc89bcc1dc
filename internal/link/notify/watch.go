package notify

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/link/netns"
	"weft.dev/weft/internal/link/podlink"
	"weft.dev/weft/internal/link/rtnetlink"
)

// Drift describes a change that the engine has not made.
type Drift struct {
	// All reports that anything may have changed: events were lost, or watching has begun.
	All bool
	// Device is the name of the changed device, if known.
	Device string
	// Kind is what changed.
	Kind link.Kind
	// End is the device's current state, if it is a pod's host veth.
	End *podlink.HostEnd
	// Attended reports that the device is the one of Attend; or, with KindAddress, that an IPv4 address of another device that is not managed
	// was added or removed.
	Attended bool
	// Err is why watching has ended before its context: this is the last value, and later changes are not reported.
	Err error
}

// driftBuffer is how many events wait for the reader before they are replaced by one All.
const driftBuffer = 64

// watchBuffer is the socket's receive buffer in bytes: room for thousands of events of a busy node.
const watchBuffer = 4 << 20

// Watch reports changes of what an engine manages, as its Watch says. home is the engine's own namespace, and port the netlink port of its
// socket.
func Watch(ctx context.Context, home *netns.Namespace, care *Care, port uint32) (<-chan Drift, error) {
	w := &watcher{home: home, care: care, port: port, names: map[int]string{}, out: make(chan Drift, driftBuffer)}
	if err := w.subscribe(); err != nil {
		return nil, fmt.Errorf("watching links: %w", err)
	}
	w.out <- Drift{All: true}
	go w.run(ctx)
	return w.out, nil
}

type watcher struct {
	home *netns.Namespace
	care *Care
	// port is the netlink port of the engine's socket.
	port   uint32
	names  map[int]string // managed devices by index
	out    chan Drift
	socket io.ReadCloser
}

func (w *watcher) subscribe() error {
	return netns.OnThread(w.home, func() error {
		fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
		if err != nil {
			return fmt.Errorf("opening a netlink socket: %w", err)
		}
		var groups uint32
		for _, group := range []uint{
			unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE,
			unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE, unix.RTNLGRP_NEIGH,
		} {
			groups |= 1 << (group - 1)
		}
		// Without the right to exceed net.core.rmem_max, the default buffer is used: events are lost earlier, which is reported.
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, watchBuffer)
		if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups}); err != nil {
			unix.Close(fd)
			return fmt.Errorf("subscribing to rtnetlink: %w", err)
		}
		w.socket = os.NewFile(uintptr(fd), "rtnetlink events")
		return w.learn()
	})
}

// learn looks up the indexes of the managed devices, for events that do not name their device.
func (w *watcher) learn() error {
	links, err := rtnetlink.ListLinks(nil)
	if err != nil {
		return err
	}
	for _, dev := range links {
		w.note(dev.Attrs().Index, dev.Attrs().Name)
	}
	return nil
}

func (w *watcher) note(index int, name string) { w.names[index] = name }

func (w *watcher) run(ctx context.Context) {
	defer close(w.out)
	stop := context.AfterFunc(ctx, func() { w.socket.Close() })
	defer func() {
		stop()
		w.socket.Close()
	}()
	buffer := make([]byte, rtnetlink.ReceiveSize)
	for ctx.Err() == nil {
		size, err := w.socket.Read(buffer)
		switch {
		case err == nil:
			w.events(buffer[:size])
		case errors.Is(err, unix.ENOBUFS), errors.Is(err, unix.EINTR):
			// The kernel dropped events; the subscription continues.
			w.send(Drift{All: true})
		case ctx.Err() != nil: // closed because ctx ended
			return
		default:
			select {
			case w.out <- Drift{All: true, Err: fmt.Errorf("watching links: %w", err)}:
			case <-ctx.Done():
			}
			return
		}
	}
}

// send never blocks: if the buffer is full, its content and the new event are replaced by one All. There is no other sender.
func (w *watcher) send(drift Drift) {
	select {
	case w.out <- drift:
		return
	default:
	}
	for {
		select {
		case <-w.out:
		default:
			w.out <- Drift{All: true}
			return
		}
	}
}

func (w *watcher) events(datagram []byte) {
	messages, err := syscall.ParseNetlinkMessage(datagram)
	if err != nil {
		w.send(Drift{All: true})
		return
	}
	for i := range messages {
		if w.own(&messages[i].Header) {
			continue
		}
		if drift, ok := w.portEvent(&messages[i]); ok {
			w.send(drift)
		}
		if drift, ok := w.event(&messages[i]); ok {
			w.send(drift)
		}
	}
}

// own reports whether the engine has made the change. The kernel reports the sender for routes and neighbours, and the port of an open
// socket is unique in its namespace.
func (w *watcher) own(header *syscall.NlMsghdr) bool {
	switch header.Type {
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE, unix.RTM_NEWNEIGH, unix.RTM_DELNEIGH:
		return header.Pid != 0 && header.Pid == w.port
	default:
		return false
	}
}

// event reports whether a message is about something managed.
func (w *watcher) event(message *syscall.NetlinkMessage) (Drift, bool) {
	data := message.Data
	switch message.Header.Type {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		return w.linkEvent(message)
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		if len(data) < unix.SizeofIfAddrmsg {
			return Drift{}, false
		}
		if isItem(data[unix.SizeofIfAddrmsg:]) {
			return Drift{Device: w.names[int(nl.DeserializeIfAddrmsg(data).Index)], Kind: link.KindAddress}, true
		}
		drift, known := w.about(int(nl.DeserializeIfAddrmsg(data).Index), link.KindDevice)
		if !known && data[0] == unix.AF_INET { // one of OtherAddresses
			return Drift{Device: drift.Device, Kind: link.KindAddress, Attended: true}, true
		}
		return drift, known
	case unix.RTM_NEWNEIGH, unix.RTM_DELNEIGH:
		if len(data) < unix.SizeofNdMsg {
			return Drift{}, false
		}
		index := int(nl.NativeEndian().Uint32(data[4:8]))
		state := uint16(data[8]) | uint16(data[9])<<8
		if data[0] == unix.AF_BRIDGE {
			return Drift{}, false // by portEvent
		}
		// A deletion causes two messages: one of a failed entry, with the sender, and one of its removal, without.
		lost := message.Header.Type == unix.RTM_NEWNEIGH && w.lostNeighbour(index, data[unix.SizeofNdMsg:])
		if state&netlink.NUD_PERMANENT == 0 && !lost {
			return Drift{}, false
		}
		return w.about(index, link.KindNeighbour)
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		// rtm_protocol is the sixth byte of struct rtmsg.
		return Drift{Kind: link.KindRoute}, len(data) >= unix.SizeofRtMsg && data[5] == link.Protocol
	case unix.RTM_NEWRULE, unix.RTM_DELRULE:
		return Drift{Kind: link.KindRule}, true
	}
	return Drift{}, false
}

// lostNeighbour reports whether a message about an entry that is not permanent is about one that the engine has programmed.
func (w *watcher) lostNeighbour(index int, attributes []byte) bool {
	if !rtnetlink.WellFormed(attributes) {
		return false
	}
	address, ok := netip.AddrFromSlice(rtnetlink.ByType(attributes)[netlink.NDA_DST])
	return ok && w.care.hasNeighbour((&link.Neighbour{Device: w.names[index], Address: address}).Key())
}

func (w *watcher) linkEvent(message *syscall.NetlinkMessage) (Drift, bool) {
	if len(message.Data) < unix.SizeofIfInfomsg || message.Data[0] != unix.AF_UNSPEC {
		return Drift{}, false // of a bridge, by portEvent, or of another family
	}
	dev, ok := device(message.Data)
	if !ok {
		return Drift{All: true}, true
	}
	attrs := dev.Attrs()
	if end, ours := podlink.HostEndOf(dev); ours && message.Header.Type == unix.RTM_NEWLINK {
		w.note(attrs.Index, attrs.Name)
		return Drift{Device: attrs.Name, End: &end}, true
	}
	drift, known := w.about(attrs.Index, link.KindDevice)
	if message.Header.Type == unix.RTM_DELLINK {
		delete(w.names, attrs.Index)
		return drift, known
	}
	w.note(attrs.Index, attrs.Name)
	if now, ok := w.about(attrs.Index, link.KindDevice); ok {
		return now, true
	}
	return drift, known // it was renamed
}

func (w *watcher) about(index int, kind link.Kind) (Drift, bool) {
	name := w.names[index]
	care := slices.ContainsFunc([]link.Kind{link.KindDevice, link.KindVeth, link.KindBridge, link.KindBridgePort}, func(kind link.Kind) bool {
		return w.care.Has(link.Key{Kind: kind, Name: name})
	})
	attended := kind == link.KindDevice && w.care.attends(name)
	return Drift{Device: name, Kind: kind, Attended: attended}, name != "" && (care || attended)
}
