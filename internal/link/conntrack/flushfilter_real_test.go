//go:build real

package conntrack

import (
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/link/nstest"
)

// With one port or one address, the kernel returns only the matching part of a large table. Other connections are not flushed.
func TestFlushIsNarrow(t *testing.T) {
	const others = 500
	space := nstest.New(t)
	nstest.Do(t, space, func() error {
		track := func(clientPort, port uint16, by string) error {
			node, pod, client := net.IPv4(192, 0, 2, 1).To4(), net.ParseIP(by).To4(), net.IPv4(192, 0, 2, 9).To4()
			return netlink.ConntrackCreate(netlink.ConntrackTable, unix.AF_INET, &netlink.ConntrackFlow{
				FamilyType: unix.AF_INET, TimeOut: 100,
				Forward: netlink.IPTuple{SrcIP: client, DstIP: node, SrcPort: clientPort, DstPort: port, Protocol: unix.IPPROTO_UDP},
				Reverse: netlink.IPTuple{SrcIP: pod, DstIP: client, SrcPort: port, DstPort: clientPort, Protocol: unix.IPPROTO_UDP},
			})
		}
		for i := range uint16(others) {
			if err := track(10000+i, 8080, "10.128.0.5"); err != nil {
				return err
			}
		}
		if err := track(20000, 53, "10.128.0.6"); err != nil {
			return err
		}
		c, err := New("")
		if err != nil {
			return err
		}
		defer c.Close()
		one, other, port := netip.MustParseAddr("10.128.0.5"), netip.MustParseAddr("10.128.0.6"), netip.AddrPortFrom(netip.Addr{}, 53)
		for _, test := range []struct {
			what    string
			narrow  narrow
			matches bool
			dumped  int
		}{
			{"two addresses", ledTo([]netip.Addr{one, other}), false, others + 1},
			{"two ports", toPorts(unix.AF_INET, unix.IPPROTO_UDP, []netip.AddrPort{port, netip.AddrPortFrom(netip.Addr{}, 54)}), false, others + 1},
			{"another protocol", toPorts(unix.AF_INET, unix.IPPROTO_TCP, []netip.AddrPort{port}), true, 0},
			{"an address", ledTo([]netip.Addr{other}), false, 1},
			{"a port", toPorts(unix.AF_INET, unix.IPPROTO_UDP, []netip.AddrPort{port}), true, 1},
			{"a port, flushed", toPorts(unix.AF_INET, unix.IPPROTO_UDP, []netip.AddrPort{port}), true, 0},
			{"an address with many", ledTo([]netip.Addr{one}), true, others},
			{"all, flushed", ledTo([]netip.Addr{one, other}), false, 0},
		} {
			if dumped, _, err := c.flush(test.narrow, func(*connection) bool { return test.matches }); err != nil || dumped != test.dumped {
				t.Errorf("%s: dump of %d entries, %v; want %d", test.what, dumped, err, test.dumped)
			}
		}
		return nil
	})
}
