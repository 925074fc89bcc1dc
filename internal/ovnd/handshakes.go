package ovnd

import (
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// Limits of connections whose handshake is not complete. Pods can connect to the relay's port, and only the handshake distinguishes them from
// servers: without limits, their connections would take all of the guard's file descriptors.
const (
	handshakesAll  = 256
	handshakesEach = 16
)

// handshakes are the connections whose handshake is not complete. One beyond the limits ends the oldest one, instead of being refused: a pod's
// connections have the address of its node, which may be that of a server, and a server completes its handshake long before it is the oldest.
type handshakes struct {
	mu  sync.Mutex
	all []*handshake // the oldest first
	// refused counts the connections refused since the last message, which was at said.
	refused int
	said    time.Time
}

// handshake is one of them.
type handshake struct {
	client netip.Addr
	stop   func()
}

// sayAgain is the least time between messages about refused connections: strangers must not fill the log.
const sayAgain = time.Minute

// refuse counts a refused connection. It returns the number of those since the last message, 0 if it is not time for the next.
func (h *handshakes) refuse(now time.Time) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.refused++
	if !h.said.IsZero() && now.Sub(h.said) < sayAgain {
		return 0
	}
	count := h.refused
	h.refused, h.said = 0, now
	return count
}

// begin adds a handshake with a client. If there are too many of this client, or of all, it stops the oldest one. The caller has to call end.
// stop must not block.
func (h *handshakes) begin(client netip.Addr, stop func()) *handshake {
	h.mu.Lock()
	defer h.mu.Unlock()
	each := 0
	for _, other := range h.all {
		if other.client == client {
			each++
		}
	}
	switch {
	case each >= handshakesEach:
		h.stop(slices.IndexFunc(h.all, func(other *handshake) bool { return other.client == client }))
	case len(h.all) >= handshakesAll:
		h.stop(0)
	}
	begun := &handshake{client, stop}
	h.all = append(h.all, begun)
	return begun
}

// stop stops a handshake. The caller holds mu.
func (h *handshakes) stop(at int) {
	h.all[at].stop()
	h.all = slices.Delete(h.all, at, at+1)
}

// end removes a handshake that is complete, or has failed.
func (h *handshakes) end(of *handshake) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all = slices.DeleteFunc(h.all, func(other *handshake) bool { return other == of })
}

// clientOf returns the address of a connection's client; the zero value if it has none.
func clientOf(conn net.Conn) netip.Addr {
	tcp, is := conn.RemoteAddr().(*net.TCPAddr)
	if !is {
		return netip.Addr{}
	}
	return tcp.AddrPort().Addr().Unmap().WithZone("")
}
