//go:build real

package marked

import (
	"context"
	"testing"

	"github.com/vishvananda/netlink"

	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/link/nstest"
	"weft.dev/weft/internal/reconcile"
)

// A device that another program creates is configured at every MTU.
func TestRealNarrowDevice(t *testing.T) {
	home := nstest.New(t)
	nstest.Do(t, home, func() error {
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "tun0"}, PeerName: "tunpeer"})
	})
	var engine *Engine
	key := (&link.Device{Name: "tun0"}).Key()
	nstest.Do(t, home, func() (err error) {
		engine, err = New(Options{Devices: []link.Key{key}})
		return err
	})
	defer engine.Close()
	for _, mtu := range []int{1450, 1279, 1000, 1280} {
		item := &link.Device{Name: "tun0", Owner: "node", MTU: mtu, Up: true, Sysctls: link.Sysctls{DisableIPv6: link.On, AcceptRA: link.Off}}
		if err := engine.Commit(context.Background(), reconcile.Change[link.Key, link.Item]{Set: map[link.Key]link.Item{key: item}}); err != nil {
			t.Fatalf("MTU %d: %v", mtu, err)
		}
		have, err := engine.Read(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if got := have[key]; got == nil || !item.Equal(got) {
			t.Errorf("MTU %d: have %v, want %v", mtu, got, item)
		}
	}
}
