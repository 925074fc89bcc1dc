package matrix

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"weft.dev/weft/lab/addon"
)

var errName = errors.New("the name does not lead to the Service")

// lookUp resolves the way's name by the cluster's DNS, and checks that the answer is the Service's address. Every second query uses TCP.
// It does not use net.Resolver, which sends queries from other threads.
func (w *Way) lookUp(n uint16) (time.Duration, error) {
	network := "udp4"
	if n%2 == 1 {
		network = "tcp4"
	}
	began := time.Now()
	answers, err := ask(network, netip.AddrPortFrom(addon.DNSAddress(), 53), w.Name, n+1)
	took := time.Since(began)
	if err != nil {
		return 0, err
	}
	if slices.Contains(answers, w.To.IP) {
		return took, nil
	}
	return 0, fmt.Errorf("%s: %w: %v", w.Name, errName, answers)
}

// Resolve queries a DNS server for a name's IPv4 addresses from the thread's network namespace, by UDP.
func Resolve(server netip.Addr, name string) ([]netip.Addr, error) {
	return ask("udp4", netip.AddrPortFrom(server, 53), name, 1)
}

// ask queries a DNS server for a name's IPv4 addresses.
func ask(network string, server netip.AddrPort, name string, id uint16) ([]netip.Addr, error) {
	query, err := question(name, id)
	if err != nil {
		return nil, err
	}
	c, err := net.DialTimeout(network, server.String(), patience)
	if err != nil {
		return nil, err
	}
	defer func() { _ = c.Close() }()
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return nil, err
	}
	answer, err := exchange(c, network, query)
	if err != nil {
		return nil, fmt.Errorf("ask %s for %s by %s: %w", server, name, network, err)
	}
	return addresses(answer, id)
}

func question(name string, id uint16) ([]byte, error) {
	host, err := dnsmessage.NewName(name)
	if err != nil {
		return nil, fmt.Errorf("ask for %q: %w", name, err)
	}
	m := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: id, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: host, Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}},
	}
	return m.Pack()
}

// exchange sends a message and reads one. By TCP, a length precedes each message (RFC 1035, 4.2.2).
func exchange(c net.Conn, network string, query []byte) ([]byte, error) {
	const most = 4096
	answer := make([]byte, most)
	if network == "udp4" {
		if _, err := c.Write(query); err != nil {
			return nil, err
		}
		n, err := c.Read(answer)
		return answer[:n], err
	}
	if _, err := c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(query))), query...)); err != nil {
		return nil, err
	}
	var length [2]byte
	if _, err := io.ReadFull(c, length[:]); err != nil {
		return nil, err
	}
	n := min(int(binary.BigEndian.Uint16(length[:])), most)
	_, err := io.ReadFull(c, answer[:n])
	return answer[:n], err
}

func addresses(answer []byte, id uint16) ([]netip.Addr, error) {
	var m dnsmessage.Message
	if err := m.Unpack(answer); err != nil {
		return nil, fmt.Errorf("read the DNS answer: %w", err)
	}
	if m.ID != id || m.RCode != dnsmessage.RCodeSuccess {
		return nil, fmt.Errorf("%w: answer %d to question %d says %s", errName, m.ID, id, m.RCode)
	}
	var addrs []netip.Addr
	for _, r := range m.Answers {
		if a, ok := r.Body.(*dnsmessage.AResource); ok {
			addrs = append(addrs, netip.AddrFrom4(a.A))
		}
	}
	return addrs, nil
}
