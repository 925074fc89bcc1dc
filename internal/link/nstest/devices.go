//go:build real

package nstest

import (
	"errors"
	"net"
	"os"
	"testing"

	"github.com/vishvananda/netlink"
)

// Veth makes a pair of devices between the calling thread's namespace and the one at a path, where the peer is.
func Veth(device, peer, path string) error {
	space, err := os.Open(path)
	if err != nil {
		return err
	}
	defer space.Close()
	return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: device}, PeerName: peer, PeerNamespace: netlink.NsFd(space.Fd())})
}

// Up adds an address to a device of the calling thread's namespace, and sets it up.
func Up(device, address string) error {
	link, err := netlink.LinkByName(device)
	if err != nil {
		return err
	}
	addr, err := netlink.ParseAddr(address)
	if err != nil {
		return err
	}
	return errors.Join(netlink.AddrAdd(link, addr), netlink.LinkSetUp(link))
}

// Say sends a datagram from a namespace.
func Say(t testing.TB, path, address, port, words string) {
	t.Helper()
	Do(t, path, func() error {
		conn, err := net.Dial("udp4", net.JoinHostPort(address, port))
		if err != nil {
			return err
		}
		_, err = conn.Write([]byte(words))
		return errors.Join(err, conn.Close())
	})
}
