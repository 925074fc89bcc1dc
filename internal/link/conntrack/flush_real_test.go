//go:build real

package conntrack_test

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/link/conntrack"
	"weft.dev/weft/internal/link/nstest"
)

// track adds a connection to the kernel's table: from one address to another at a port; led is the address it is translated to.
func track(from, to, led string, protocol uint8, port uint16) error {
	const clientPort, timeout = 40000, 100
	return netlink.ConntrackCreate(netlink.ConntrackTable, unix.AF_INET, &netlink.ConntrackFlow{
		FamilyType: unix.AF_INET, TimeOut: timeout,
		Forward: netlink.IPTuple{SrcIP: net.ParseIP(from).To4(), DstIP: net.ParseIP(to).To4(), SrcPort: clientPort, DstPort: port, Protocol: protocol},
		Reverse: netlink.IPTuple{SrcIP: net.ParseIP(led).To4(), DstIP: net.ParseIP(from).To4(), SrcPort: port, DstPort: clientPort, Protocol: protocol},
	})
}

// tracked returns the connections of the calling thread's namespace: the destination, and the address that answers.
func tracked() ([]string, error) {
	flows, err := netlink.ConntrackTableList(netlink.ConntrackTable, unix.AF_INET)
	var all []string
	for _, flow := range flows {
		all = append(all, netip.AddrPortFrom(netip.MustParseAddr(flow.Forward.DstIP.String()), flow.Forward.DstPort).String()+" by "+flow.Reverse.SrcIP.String())
	}
	slices.Sort(all)
	return all, err
}

func TestFlush(t *testing.T) {
	space := nstest.New(t)
	nstest.Do(t, space, func() error {
		device := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "wtown"}, PeerName: "wtpeer"}
		if err := netlink.LinkAdd(device); err != nil {
			return err
		}
		if err := netlink.AddrAdd(device, &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(192, 0, 2, 1), Mask: net.CIDRMask(24, 32)}}); err != nil {
			return err
		}
		conntrack, err := conntrack.New("")
		if err != nil {
			return err
		}
		defer conntrack.Close()
		const pod, client = "10.128.0.5", "192.0.2.9"
		for _, c := range []struct {
			to, led  string
			protocol uint8
			port     uint16
		}{
			{"192.0.2.1", "192.0.2.1", unix.IPPROTO_UDP, 53},       // before there was a pod
			{"192.0.2.1", pod, unix.IPPROTO_UDP, 54},               // led to a pod, at a port that is not flushed first
			{"192.0.2.1", "192.0.2.1", unix.IPPROTO_TCP, 53},       // another protocol
			{"192.0.2.1", "192.0.2.1", unix.IPPROTO_SCTP, 55},      // by SCTP
			{"127.0.0.1", "127.0.0.1", unix.IPPROTO_UDP, 53},       // loopback
			{"198.51.100.1", "198.51.100.1", unix.IPPROTO_UDP, 53}, // another program's port
			{pod, pod, unix.IPPROTO_UDP, 53},                       // to the pod itself
		} {
			if err := track(client, c.to, c.led, c.protocol, c.port); err != nil {
				return err
			}
		}
		expect := func(when string, want ...string) {
			have, err := tracked()
			slices.Sort(want)
			if err != nil || !slices.Equal(have, want) {
				t.Errorf("%s: %q, %v, want %q", when, have, err, want)
			}
		}
		one, loop, tcp := "192.0.2.1:54 by "+pod, "127.0.0.1:53 by 127.0.0.1", "192.0.2.1:53 by 192.0.2.1"
		const sctp = "192.0.2.1:0 by 192.0.2.1" // the netlink package does not read its port
		others := []string{"198.51.100.1:53 by 198.51.100.1", pod + ":53 by " + pod}
		expect("before", append([]string{tcp, tcp, sctp, one, loop}, others...)...)
		if err := conntrack.FlushTo(unix.IPPROTO_UDP, netip.AddrPortFrom(netip.MustParseAddr("192.0.2.1"), 53)); err != nil {
			return err
		}
		expect("one address", append([]string{tcp, sctp, one, loop}, others...)...)
		if err := conntrack.FlushTo(unix.IPPROTO_UDP, netip.AddrPortFrom(netip.Addr{}, 53), netip.AddrPortFrom(netip.MustParseAddr("192.0.2.2"), 54)); err != nil {
			return err
		}
		expect("all addresses", append([]string{tcp, sctp, one}, others...)...)
		if err := conntrack.FlushTo(unix.IPPROTO_SCTP, netip.AddrPortFrom(netip.Addr{}, 53), netip.AddrPortFrom(netip.Addr{}, 54)); err != nil {
			return err
		}
		expect("another port of SCTP", append([]string{tcp, sctp, one}, others...)...)
		if err := conntrack.FlushTo(unix.IPPROTO_SCTP, netip.AddrPortFrom(netip.Addr{}, 55)); err != nil {
			return err
		}
		expect("SCTP", append([]string{tcp, one}, others...)...)
		if err := conntrack.FlushTranslatedTo(netip.MustParseAddr("10.128.0.6"), netip.MustParseAddr(pod)); err != nil {
			return err
		}
		expect("the pod", append([]string{tcp}, others...)...)
		return flushesFamilies(t, conntrack)
	})
}

// flushesFamilies checks that 0.0.0.0 and :: stand for all addresses of their families, and that connections by IPv6 are flushed like those
// by IPv4.
func flushesFamilies(t *testing.T, conntrack *conntrack.Table) error {
	t.Helper()
	const pod = "fd00::5"
	device, err := netlink.LinkByName("wtown")
	if err != nil {
		return err
	}
	add := func() error {
		return errors.Join(track6("2001:db8::9", "2001:db8::1", pod), track("192.0.2.9", "192.0.2.1", "10.128.0.7", unix.IPPROTO_UDP, 53))
	}
	count := func() (six, four int) {
		all, err := netlink.ConntrackTableList(netlink.ConntrackTable, unix.AF_INET6)
		some, failed := netlink.ConntrackTableList(netlink.ConntrackTable, unix.AF_INET)
		if err != nil || failed != nil {
			t.Error(err, failed)
		}
		for _, flow := range some {
			if flow.Forward.Protocol == unix.IPPROTO_UDP && flow.Reverse.SrcIP.String() == "10.128.0.7" && flow.Forward.DstIP.String() == "192.0.2.1" {
				four++
			}
		}
		return len(all), four
	}
	if err := netlink.AddrAdd(device, &netlink.Addr{IPNet: &net.IPNet{IP: net.ParseIP("2001:db8::1"), Mask: net.CIDRMask(64, 128)}, Flags: unix.IFA_F_NODAD}); err != nil {
		return err
	}
	for _, c := range []struct {
		what      string
		flush     func() error
		six, four int
	}{
		{"0.0.0.0", func() error {
			return conntrack.FlushTo(unix.IPPROTO_UDP, netip.AddrPortFrom(netip.IPv4Unspecified(), 53))
		}, 1, 0},
		{"::", func() error {
			return conntrack.FlushTo(unix.IPPROTO_UDP, netip.AddrPortFrom(netip.IPv6Unspecified(), 53))
		}, 0, 1},
		{"all", func() error { return conntrack.FlushTo(unix.IPPROTO_UDP, netip.AddrPortFrom(netip.Addr{}, 53)) }, 0, 0},
		{"an IPv6 pod", func() error { return conntrack.FlushTranslatedTo(netip.MustParseAddr(pod)) }, 0, 1},
		{"the pods", func() error {
			return conntrack.FlushTranslatedTo(netip.MustParseAddr(pod), netip.MustParseAddr("10.128.0.7"))
		}, 0, 0},
	} {
		if err := errors.Join(conntrack.FlushTo(unix.IPPROTO_UDP, netip.AddrPortFrom(netip.Addr{}, 53)), add(), c.flush()); err != nil {
			return err
		}
		if six, four := count(); six != c.six || four != c.four {
			t.Errorf("%s: %d connections by IPv6 and %d by IPv4 are left, want %d and %d", c.what, six, four, c.six, c.four)
		}
	}
	return nil
}

// track6 is track for a connection to port 53 by IPv6.
func track6(from, to, led string) error {
	const clientPort, port, timeout = 40000, 53, 100
	return netlink.ConntrackCreate(netlink.ConntrackTable, unix.AF_INET6, &netlink.ConntrackFlow{
		FamilyType: unix.AF_INET6, TimeOut: timeout,
		Forward: netlink.IPTuple{SrcIP: net.ParseIP(from), DstIP: net.ParseIP(to), SrcPort: clientPort, DstPort: port, Protocol: unix.IPPROTO_UDP},
		Reverse: netlink.IPTuple{SrcIP: net.ParseIP(led), DstIP: net.ParseIP(from), SrcPort: port, DstPort: clientPort, Protocol: unix.IPPROTO_UDP},
	})
}
