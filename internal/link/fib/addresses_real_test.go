//go:build real

package fib_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/link/fib"
	"weft.dev/weft/internal/link/nstest"
)

// Weft's own addresses are distinguished from all others, whatever the device and the range.
func TestOtherAddresses(t *testing.T) {
	home := nstest.New(t)
	nstest.Do(t, home, func() error {
		pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "wtnear"}, PeerName: "wtfar"}
		if err := netlink.LinkAdd(pair); err != nil {
			return err
		}
		for address, label := range map[string]string{"192.0.2.1/24": "", "192.0.2.50/24": "wtnear:vip", "192.0.2.60/32": "", "192.0.2.100/32": link.AddressLabel} {
			addr, err := netlink.ParseAddr(address)
			if err != nil {
				return err
			}
			addr.Label = label
			if err := netlink.AddrAdd(pair, addr); err != nil {
				return err
			}
		}
		others, err := fib.OtherAddresses()
		if err != nil {
			return err
		}
		var words []string
		for address := range others {
			words = append(words, address.String())
		}
		slices.Sort(words)
		if got := strings.Join(words, " "); got != "192.0.2.1 192.0.2.50 192.0.2.60" {
			return fmt.Errorf("others' addresses are %s", got)
		}
		return nil
	})
}
