//go:build real

package marked_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/link/linktest"
	"weft.dev/weft/internal/link/marked"
	"weft.dev/weft/internal/link/notify"
	"weft.dev/weft/internal/link/nstest"
	"weft.dev/weft/internal/reconcile"
)

func newEngine(t testing.TB, home string, options marked.Options) (engine *marked.Engine) {
	t.Helper()
	nstest.Do(t, home, func() (err error) {
		engine, err = marked.New(options)
		return err
	})
	t.Cleanup(engine.Close)
	return engine
}

func addDevice() error {
	return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: linktest.Device, TxQLen: -1}, PeerName: "wtfar", PeerTxQLen: -1})
}

func removeDevice() error {
	device, err := netlink.LinkByName(linktest.Device)
	if err != nil {
		return err
	}
	return netlink.LinkDel(device)
}

func subject(t *testing.T) (linktest.Subject, string) {
	home, other := nstest.New(t), nstest.New(t)
	nstest.Do(t, home, func() error {
		lo, err := netlink.LinkByName("lo")
		return errors.Join(err, netlink.LinkSetUp(lo), addDevice())
	})
	return linktest.Subject{
		Engine: newEngine(t, home, marked.Options{}), Other: other,
		Restart: func() reconcile.Engine[link.Key, link.Item] {
			return newEngine(t, home, marked.Options{
				Namespaces: []string{other}, Devices: []link.Key{{Kind: link.KindVeth, Name: "wtpair"}},
			})
		},
		RemoveDevice: func() { nstest.Do(t, home, removeDevice) },
		AddDevice:    func() { nstest.Do(t, home, addDevice) },
		RemoveOther: func() {
			if err := unix.Unmount(other, unix.MNT_DETACH); err != nil {
				t.Fatal(err)
			}
		},
		Forget: func(item link.Item) {
			where := home
			if item.Key().Netns != "" {
				where = other
			}
			nstest.Do(t, where, func() error { return forget(item) })
		},
	}, home
}

// forget removes an item through the library, as another program would.
func forget(item link.Item) error {
	switch item := item.(type) {
	case *link.Route:
		table := item.Table
		if table == 0 {
			table = link.TableMain
		}
		routes, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Table: table, Protocol: link.Protocol}, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_PROTOCOL)
		if err != nil {
			return err
		}
		for i := range routes {
			ones, _ := routes[i].Dst.Mask.Size()
			if routes[i].Dst.IP.Equal(item.Dst.Addr().AsSlice()) && ones == item.Dst.Bits() {
				return netlink.RouteDel(&routes[i])
			}
		}
	case *link.Address:
		device, err := netlink.LinkByName(item.Device)
		if err != nil {
			return err
		}
		return netlink.AddrDel(device, &netlink.Addr{IPNet: &net.IPNet{IP: item.Address.AsSlice(), Mask: net.CIDRMask(32, 32)}})
	case *link.Neighbour:
		device, err := netlink.LinkByName(item.Device)
		if err != nil {
			return err
		}
		return netlink.NeighDel(&netlink.Neigh{LinkIndex: device.Attrs().Index, IP: item.Address.AsSlice(), Family: netlink.FAMILY_V4})
	case *link.Rule:
		rules, err := netlink.RuleList(netlink.FAMILY_ALL)
		if err != nil {
			return err
		}
		for i := range rules {
			if rules[i].Priority == item.Priority {
				return netlink.RuleDel(&rules[i])
			}
		}
	}
	return fmt.Errorf("%v was not found", item)
}

func TestRealConforms(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	linktest.Run(t, func(t *testing.T) linktest.Subject {
		s, _ := subject(t)
		return s
	})
}

// A device that another program creates again, an address that another program removes and a route are reported; other devices are not.
func TestRealWatch(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	s, home := subject(t)
	engine := s.Engine.(*marked.Engine)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if err := engine.Commit(ctx, reconcile.Change[link.Key, link.Item]{Set: linktest.State(s.Other)}); err != nil {
		t.Fatal(err)
	}
	drifts, err := engine.Watch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	until := func(want func(notify.Drift) bool) {
		t.Helper()
		deadline := time.After(60 * time.Second)
		for {
			select {
			case drift := <-drifts:
				if want(drift) {
					return
				}
				if drift.Device == "wtstranger" {
					t.Fatalf("a foreign device is reported: %+v", drift)
				}
			case <-deadline:
				t.Fatal("not reported")
			}
		}
	}
	until(func(d notify.Drift) bool { return d.All })
	nstest.Do(t, home, func() error {
		return netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "wtstranger", TxQLen: -1}})
	})
	nstest.Do(t, home, removeDevice)
	until(func(d notify.Drift) bool { return d.Kind == link.KindRoute })
	until(func(d notify.Drift) bool { return d.Kind == link.KindDevice && d.Device == linktest.Device })
	nstest.Do(t, home, addDevice)
	until(func(d notify.Drift) bool { return d.Kind == link.KindDevice && d.Device == linktest.Device })
	cancel()
	for range drifts { // until it is closed
	}
}

// A route or device of another program is not taken over.
func TestRealForeign(t *testing.T) {
	s, home := subject(t)
	route := &link.Route{Dst: netip.MustParsePrefix("10.128.0.0/14"), Device: linktest.Device}
	nstest.Do(t, home, func() error {
		device, err := netlink.LinkByName(linktest.Device)
		if err != nil {
			return err
		}
		destination, err := netlink.ParseIPNet("10.128.0.0/14")
		return errors.Join(err, netlink.LinkSetUp(device), netlink.RouteAdd(&netlink.Route{
			LinkIndex: device.Attrs().Index, Dst: destination, Protocol: unix.RTPROT_STATIC, Scope: netlink.SCOPE_LINK,
		}))
	})
	pair := &link.Veth{Name: linktest.Device, PeerName: "wtx"}
	for _, item := range []link.Item{route, pair} {
		err := s.Commit(context.Background(), reconcile.Change[link.Key, link.Item]{Set: linktest.Items(item)})
		if !errors.Is(err, link.ErrForeign) {
			t.Errorf("%v: %v", item, err)
		}
	}
}

// Of an attended device, changes of itself and of its addresses are reported, and it does not become managed; of all others, changes of
// their addresses are reported.
func TestRealAttend(t *testing.T) {
	s, home := subject(t)
	engine := s.Engine.(*marked.Engine)
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	nstest.Do(t, home, func() error {
		return netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "wtuplink", TxQLen: -1}})
	})
	drifts, err := engine.Watch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	engine.Attend("wtuplink")
	about := map[string]string{"address of another": "lo"}
	for name, change := range map[string]func(netlink.Link) error{
		"mtu": func(l netlink.Link) error { return netlink.LinkSetMTU(l, 1400) },
		"address": func(l netlink.Link) error {
			address, err := netlink.ParseAddr("192.0.2.1/24")
			return errors.Join(err, netlink.AddrAdd(l, address))
		},
		"address of another": func(netlink.Link) error {
			lo, err := netlink.LinkByName("lo")
			if err != nil {
				return err
			}
			address, err := netlink.ParseAddr("192.0.2.50/32")
			return errors.Join(err, netlink.AddrAdd(lo, address))
		},
	} {
		nstest.Do(t, home, func() error {
			uplink, err := netlink.LinkByName("wtuplink")
			return errors.Join(err, change(uplink))
		})
		for reported := false; !reported; {
			select {
			case drift := <-drifts:
				reported = drift.Attended && drift.Device == cmp.Or(about[name], "wtuplink")
			case <-ctx.Done():
				t.Fatalf("%s: not reported", name)
			}
		}
	}
	if state, err := engine.Read(ctx); err != nil || len(state) > 0 {
		t.Errorf("in care: %v, %v", state, err)
	}
}
