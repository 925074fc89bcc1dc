package matrix

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"

	"weft.dev/weft/lab/ground"
)

const (
	patience = 5 * time.Second // time limit of one exchange, for a busy machine: an answer ends it
	giveUp   = 3               // number of exchanges without an answer after which the path counts as broken
)

// patience returns the time limit of one exchange of the path.
func (w *Way) patience() time.Duration { return cmp.Or(w.limit, patience) }

// measure measures the path and fills in the results.
func (w *Way) measure(exchanges int) {
	err := ground.Do(w.From.netns, func() error {
		if w.Name != "" {
			w.DNS = repeat(exchanges, func(n int) (time.Duration, error) { return w.lookUp(uint16(n)) })
		}
		w.Seen = w.source()
		w.HTTP = repeat(exchanges, func(int) (time.Duration, error) { return w.identify() })
		if w.To.kind != service {
			w.Ping = w.ping(exchanges)
		}
		return nil
	})
	if err != nil {
		w.HTTP.Problem = err.Error()
	}
	w.Reached = exchanges > 0 && w.HTTP.Answered == exchanges &&
		(w.To.kind == service || w.Ping.Answered == exchanges) && (w.Name == "" || w.DNS.Answered == exchanges)
	w.AsItMust = w.Reached && w.Seen == w.Source
}

// repeat does an exchange a number of times, but stops if the first few have no answer.
func repeat(times int, exchange func(n int) (time.Duration, error)) Measured {
	var m Measured
	var took []time.Duration
	for n := range times {
		d, err := exchange(n)
		m.Sent++
		if err == nil {
			took = append(took, d)
		} else if m.Problem == "" {
			m.Problem = err.Error()
		}
		if len(took) == 0 && m.Sent == giveUp {
			break
		}
	}
	m.Answered, m.Median = len(took), median(took)
	return m
}

func median(took []time.Duration) time.Duration {
	if len(took) == 0 {
		return 0
	}
	slices.Sort(took)
	return took[len(took)/2]
}

// source returns the source address that the receiver sees.
func (w *Way) source() netip.Addr {
	said, _, err := w.get(pathSource)
	if err != nil {
		return netip.Addr{} // the following exchanges report the reason
	}
	if at, err := netip.ParseAddrPort(said); err == nil {
		return at.Addr().Unmap()
	}
	addr, _ := netip.ParseAddr(said)
	return addr.Unmap()
}

// identify measures an exchange and checks which party answered.
func (w *Way) identify() (time.Duration, error) {
	said, took, err := w.get(pathName)
	if err == nil && w.To.answers != "" && said != w.To.answers {
		err = fmt.Errorf("%s:%d: %w: %q", w.To.IP, w.To.port, errStranger, said)
	}
	return took, err
}

var errStranger = errors.New("somebody else answered")

// get makes a request on its own connection, from the thread's namespace, and returns the time from the first packet to the answer. It
// does not use http.Transport, which connects on other threads.
func (w *Way) get(path string) (string, time.Duration, error) {
	to, limit := netip.AddrPortFrom(w.To.IP, w.To.port), w.patience()
	began := time.Now()
	c, err := w.dial(to)
	if err != nil {
		return "", 0, err
	}
	defer func() { _ = c.Close() }()
	if err := c.SetDeadline(began.Add(limit)); err != nil {
		return "", 0, err
	}
	if _, err := io.WriteString(c, "GET "+path+" HTTP/1.1\r\nHost: "+to.String()+"\r\nConnection: close\r\n\r\n"); err != nil {
		return "", 0, err
	}
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return "", 0, fmt.Errorf("read the answer of %s: %w", to, err)
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(res.Body, 1<<10))
	if err != nil {
		return "", 0, fmt.Errorf("read the answer of %s: %w", to, err)
	}
	if res.StatusCode != http.StatusOK {
		return "", 0, fmt.Errorf("%s answers %s to GET %s", to, res.Status, path)
	}
	return strings.TrimSpace(string(body)), time.Since(began), nil
}

// Source ports of connections: those through Services use this range, all others the range before. On the userspace datapath a direct
// connection from the same port to the same endpoint as an earlier one through a Service receives that one's replies (docs/services.md):
// a repeated matrix would meet this occasionally.
const (
	directPorts  = 12000
	servicePorts = 18000
	portsOfKind  = servicePorts - directPorts
)

// dial connects from the next free port.
func (w *Way) dial(to netip.AddrPort) (net.Conn, error) {
	if w.from == 0 {
		w.from = 1 + rand.IntN(portsOfKind) //nolint:gosec // no secret
	}
	first := directPorts
	if w.To.kind == service {
		first = servicePorts
	}
	for tried := 0; ; tried++ {
		w.from++
		dialer := net.Dialer{Timeout: w.patience(), LocalAddr: &net.TCPAddr{Port: first + w.from%portsOfKind}}
		c, err := dialer.Dial("tcp4", to.String())
		if !errors.Is(err, unix.EADDRINUSE) || tried == portsOfKind {
			return c, err
		}
	}
}

func (w *Way) ping(exchanges int) Measured {
	c, err := net.ListenPacket("ip4:icmp", "0.0.0.0")
	if err != nil {
		return Measured{Problem: err.Error()}
	}
	defer func() { _ = c.Close() }()
	id := uint16(os.Getpid())
	return repeat(exchanges, func(n int) (time.Duration, error) { return echo(c, w.To.IP, id, uint16(n), w.patience()) })
}

// echo sends an ICMP echo request and waits for its answer among all messages of the socket.
func echo(c net.PacketConn, to netip.Addr, id, seq uint16, limit time.Duration) (time.Duration, error) {
	buffer := gopacket.NewSerializeBuffer()
	icmp := &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(layers.ICMPv4TypeEchoRequest, 0), Id: id, Seq: seq}
	payload := gopacket.Payload(make([]byte, 56)) // as ping(8) sends
	if err := gopacket.SerializeLayers(buffer, gopacket.SerializeOptions{ComputeChecksums: true}, icmp, payload); err != nil {
		return 0, fmt.Errorf("make an echo request: %w", err)
	}
	began := time.Now()
	if err := c.SetDeadline(began.Add(limit)); err != nil {
		return 0, err
	}
	if _, err := c.WriteTo(buffer.Bytes(), &net.IPAddr{IP: to.AsSlice()}); err != nil {
		return 0, err
	}
	answer := make([]byte, 2048)
	for {
		n, from, err := c.ReadFrom(answer)
		if err != nil {
			return 0, fmt.Errorf("no answer to ICMP echo from %s: %w", to, err)
		}
		if isReply(answer[:n], id, seq) && from.String() == to.String() {
			return time.Since(began), nil
		}
	}
}

// isReply reports whether a message is the reply to an echo request (RFC 792).
func isReply(message []byte, id, seq uint16) bool {
	return len(message) >= 8 && message[0] == layers.ICMPv4TypeEchoReply &&
		binary.BigEndian.Uint16(message[4:]) == id && binary.BigEndian.Uint16(message[6:]) == seq
}
