//go:build real

package nftables_test

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"weft.dev/weft/internal/link/nstest"
	"weft.dev/weft/internal/policy/oracle"
)

// serve echoes what it receives, in a namespace at TCP 80 and 82 and UDP 85.
func serve(t *testing.T, space string) {
	t.Helper()
	nstest.Do(t, space, func() error {
		for _, port := range []string{":80", ":82"} {
			l, err := net.Listen("tcp", port)
			if err != nil {
				return err
			}
			t.Cleanup(func() { l.Close() })
			go func() {
				for {
					c, err := l.Accept()
					if err != nil {
						return
					}
					go func() {
						defer c.Close()
						_, _ = io.Copy(c, c)
					}()
				}
			}()
		}
		c, err := net.ListenPacket("udp", ":85")
		if err != nil {
			return err
		}
		t.Cleanup(func() { _ = c.Close() })
		go func() {
			data := make([]byte, 64)
			for {
				n, from, err := c.ReadFrom(data)
				if err != nil {
					return
				}
				_, _ = c.WriteTo(data[:n], from)
			}
		}()
		return nil
	})
}

// dial opens a connection in a namespace, and sends data through it in both directions.
func dial(t *testing.T, space, network string, to netip.AddrPort, patience time.Duration) (net.Conn, error) {
	var c net.Conn
	err := errors.New("not tried")
	nstest.Do(t, space, func() error {
		c, err = (&net.Dialer{Timeout: patience}).Dial(network, to.String())
		return nil
	})
	if err != nil {
		return nil, err
	}
	if err = echo(c, patience); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// echo sends through a connection and waits for the answer. It repeats datagrams.
func echo(c net.Conn, patience time.Duration) error {
	end := time.Now().Add(patience)
	data := make([]byte, 64)
	for {
		if _, err := c.Write([]byte("x")); err != nil {
			return err
		}
		wait := end
		if _, datagrams := c.(*net.UDPConn); datagrams {
			wait = time.Now().Add(min(patience, time.Second))
		}
		_ = c.SetReadDeadline(wait)
		if _, err := c.Read(data); err == nil {
			return nil
		} else if time.Now().After(end) || !wait.Before(end) {
			return err
		}
	}
}

// Time limits for packets that must arrive, and for packets that must not.
const (
	patience   = 60 * time.Second
	impatience = 600 * time.Millisecond
)

// end is a sender or a receiver of packets.
type end struct {
	name      string
	space     string
	addresses []netip.Addr
}

func (n *node) ends(w oracle.World) []end {
	list := []end{
		{"outside", n.outside, []netip.Addr{netip.MustParseAddr(outside4), netip.MustParseAddr(outside6)}},
		{"node", n.space, []netip.Addr{netip.MustParseAddr(gateway4), netip.MustParseAddr(gateway6)}},
	}
	for i, pod := range w.Pods {
		rec := record(pod)
		list = append(list, end{pod.Name, n.pods[i], []netip.Addr{rec.Addresses[0].Addr(), rec.Addresses[1].Addr()}})
	}
	return list
}

// judge compares where packets arrive with the oracle's verdict.
func (n *node) judge(t *testing.T, w oracle.World) {
	t.Helper()
	var group sync.WaitGroup
	for _, from := range n.ends(w) {
		for _, to := range n.ends(w) {
			if from.name == to.name || !strings.HasPrefix(from.name, "p") && !strings.HasPrefix(to.name, "p") {
				continue
			}
			for family := range 2 {
				for _, p := range []oracle.Packet{
					{Protocol: corev1.ProtocolTCP, Port: 80}, {Protocol: corev1.ProtocolTCP, Port: 82}, {Protocol: corev1.ProtocolUDP, Port: 85},
				} {
					p.Src, p.Dst = from.addresses[family], to.addresses[family]
					want := from.name == "node" || w.Allowed(p) // a node reaches its own pods
					time := impatience
					if want {
						time = patience
					}
					group.Go(func() {
						c, err := dial(t, from.space, strings.ToLower(string(p.Protocol)), netip.AddrPortFrom(p.Dst, p.Port), time)
						if err == nil {
							c.Close()
						}
						if want != (err == nil) {
							t.Errorf("%s to %s, %+v: allowed %t, seen: %v", from.name, to.name, p, want, err)
						}
					})
				}
			}
		}
	}
	group.Wait()
}
