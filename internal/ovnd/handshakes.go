package ovnd

import (
	"net"
	"net/netip"
	"sync"
	"time"
)

// Limits of connections whose handshake is not complete. Pods can connect to the relay's port, and only the handshake distinguishes them from
// servers: without limits, their connections would take all of the guard's file descriptors. One address cannot keep the others out.
const (
	handshakesAll  = 256
	handshakesEach = 16
)

// handshakes counts connections whose handshake is not complete.
type handshakes struct {
	mu   sync.Mutex
	all  int
	each map[netip.Addr]int
	// refused counts the connections refused since the last message, which was at said.
	refused int
	said    time.Time
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

// begin reports whether a handshake with a client may begin. Then the caller has to call end.
func (h *handshakes) begin(client netip.Addr) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.all >= handshakesAll || h.each[client] >= handshakesEach {
		return false
	}
	if h.each == nil {
		h.each = map[netip.Addr]int{}
	}
	h.all++
	h.each[client]++
	return true
}

func (h *handshakes) end(client netip.Addr) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all--
	if h.each[client]--; h.each[client] == 0 {
		delete(h.each, client)
	}
}

// clientOf returns the address of a connection's client; the zero value if it has none.
func clientOf(conn net.Conn) netip.Addr {
	tcp, is := conn.RemoteAddr().(*net.TCPAddr)
	if !is {
		return netip.Addr{}
	}
	return tcp.AddrPort().Addr().Unmap().WithZone("")
}
