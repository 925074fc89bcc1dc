package whole

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// watchBuffer is the socket's receive buffer in bytes: room for thousands of events.
const watchBuffer = 4 << 20

// poll limits how long the watcher stays in a read after its context has ended.
const poll = time.Second

// Watch reports on the channel, until ctx ends, that another program may have changed something managed, the device of Attend, an address
// or a default route; then it closes the channel. One value may represent any number of changes. The engine's own requests are not
// reported, and neither are other links: on a node, pods' links change all the time.
func (e *Engine) Watch(ctx context.Context) (<-chan struct{}, error) {
	socket, err := nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_NEIGH, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE,
		unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_NEXTHOP)
	if err != nil {
		return nil, fmt.Errorf("subscribe to rtnetlink: %w", err)
	}
	// Without the right to exceed net.core.rmem_max, the default buffer is used: events are lost earlier, which is reported.
	_ = unix.SetsockoptInt(socket.GetFd(), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, watchBuffer)
	out := make(chan struct{}, 1)
	w := &watcher{engine: e, own: e.requests.Port, out: out}
	var once sync.Once
	stop := context.AfterFunc(ctx, func() { once.Do(socket.Close) })
	go func() {
		defer close(out)
		defer once.Do(socket.Close)
		defer stop()
		w.run(ctx, socket)
	}()
	return out, nil
}

type watcher struct {
	engine *Engine
	own    uint32
	out    chan struct{}
}

func (w *watcher) run(ctx context.Context, socket *nl.NetlinkSocket) {
	_ = socket.SetReceiveTimeout(&unix.Timeval{Sec: int64(poll / time.Second)})
	for ctx.Err() == nil {
		messages, _, err := socket.Receive()
		switch {
		case err == nil:
			if w.foreign(messages) {
				w.report()
			}
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.ENOBUFS):
			w.report()
		default:
			return
		}
	}
}

func (w *watcher) report() {
	select {
	case w.out <- struct{}{}:
	default:
	}
}

// foreign reports whether one of the messages may be about something managed and comes from another program.
func (w *watcher) foreign(messages []syscall.NetlinkMessage) bool {
	for i := range messages {
		if own := messages[i].Header.Pid == w.own && w.own != 0; !own && w.managed(&messages[i]) {
			return true
		}
	}
	return false
}

// managed reports whether a message may be about something managed.
func (w *watcher) managed(message *syscall.NetlinkMessage) bool {
	data := message.Data
	switch message.Header.Type {
	case unix.RTM_NEWNEIGH, unix.RTM_DELNEIGH:
		return w.neighbour(message)
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		// rtm_dst_len is byte 1, and rtm_protocol byte 5.
		return len(data) >= unix.SizeofRtMsg && (data[5] == Protocol || data[5] == unix.RTPROT_BOOT || data[1] == 0)
	case unix.RTM_NEWNEXTHOP, unix.RTM_DELNEXTHOP:
		// nh_protocol is byte 2. The kernel removes the routes of a deleted one, and reports only it.
		return len(data) >= unix.SizeofNhmsg && data[2] == Protocol
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		return w.link(message)
	}
	return true
}

// link reports whether a message is about a managed device or that of Attend, by its current or former name. A message that cannot be
// parsed counts as one.
func (w *watcher) link(message *syscall.NetlinkMessage) bool {
	attributes, err := syscall.ParseNetlinkRouteAttr(message)
	if err != nil || len(message.Data) < unix.SizeofIfInfomsg {
		return true
	}
	index, name := int(int32(binary.NativeEndian.Uint32(message.Data[4:]))), ""
	for _, attribute := range attributes {
		if attribute.Attr.Type == unix.IFLA_IFNAME {
			name = unix.ByteSliceToString(attribute.Value)
		}
	}
	w.engine.mu.Lock()
	defer w.engine.mu.Unlock()
	before := w.engine.names[index]
	return w.engine.options.Owns(name) || w.engine.options.Owns(before) || index == w.engine.attended.index || name == w.engine.attended.name
}

// neighbour reports whether a neighbour or forwarding entry of a managed device changed that is, or was, permanent. The kernel reports the
// deletion of a neighbour, and each change of a VXLAN device's forwarding entries (vxlan_fdb_notify), without the program that caused it. So
// they are compared with what is known.
func (w *watcher) neighbour(message *syscall.NetlinkMessage) bool {
	if len(message.Data) < unix.SizeofNdMsg {
		return false
	}
	n, err := netlink.NeighDeserialize(message.Data)
	if err != nil {
		return true
	}
	w.engine.mu.Lock()
	defer w.engine.mu.Unlock()
	name, ok := w.engine.names[n.LinkIndex]
	if !ok || !w.engine.options.Owns(name) {
		return false
	}
	addr, _ := netip.AddrFromSlice(n.IP)
	var mac MAC
	copy(mac[:], n.HardwareAddr)
	var item Item = &Neighbour{name, addr.Unmap(), mac}
	if n.Family == unix.AF_BRIDGE {
		item = &FDB{name, mac, addr.Unmap()}
	}
	known, present := w.engine.known[item.Key()]
	switch {
	case message.Header.Type == unix.RTM_DELNEIGH:
		// A forwarding entry to another remote address is one that the known one has replaced.
		return present && (n.Family != unix.AF_BRIDGE || known.Equal(item))
	case n.State&netlink.NUD_PERMANENT == 0: // dynamic neighbours change all the time
		return present
	}
	return !present || !known.Equal(item)
}
