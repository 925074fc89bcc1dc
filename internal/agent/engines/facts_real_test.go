//go:build real

package engines

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/containernetworking/plugins/pkg/testutils"
	"github.com/vishvananda/netlink"
)

// TestNodeIsFoundWhilePodsComeAndGo: the kernel reports a list that changed during the dump. On a busy node, that is nearly every list.
func TestNodeIsFoundWhilePodsComeAndGo(t *testing.T) {
	space, err := testutils.NewNS()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = testutils.UnmountNS(space) })
	t.Cleanup(func() { _ = space.Close() })
	inside := func(do func() error) error { return space.Do(func(ns.NetNS) error { return do() }) }
	address := netip.MustParseAddr("192.0.2.1")
	if err := inside(func() error { return crowd(address) }); err != nil {
		t.Fatal(err)
	}
	churning := make(chan error, 1)
	stop := make(chan struct{})
	go func() { churning <- inside(func() error { return churn(stop) }) }()
	failed := 0
	for range 100 {
		if err := inside(func() error { _, _, err := linkWith(address); return err }); err != nil {
			failed++
			t.Log(err)
		}
	}
	close(stop)
	if err := <-churning; err != nil {
		t.Fatal(err)
	}
	if failed > 0 {
		t.Errorf("%d of 100 times the node was not found", failed)
	}
}

// crowd creates links as on a node with many pods; the uplink among them has the address.
func crowd(address netip.Addr) error {
	for i := range 200 {
		pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: fmt.Sprintf("wta%d", i)}, PeerName: fmt.Sprintf("wtb%d", i)}
		if err := netlink.LinkAdd(pair); err != nil {
			return err
		}
	}
	uplink, err := netlink.LinkByName("wta150")
	if err != nil {
		return err
	}
	parsed, err := netlink.ParseAddr(address.String() + "/24")
	if err != nil {
		return err
	}
	return netlink.AddrAdd(uplink, parsed)
}

func churn(stop <-chan struct{}) error {
	for i := 0; ; i++ {
		select {
		case <-stop:
			return nil
		default:
		}
		pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: fmt.Sprintf("wtx%d", i)}, PeerName: fmt.Sprintf("wty%d", i)}
		if err := netlink.LinkAdd(pair); err != nil {
			return err
		}
	}
}
