//go:build real

package link

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/link/nstest"
)

func testSpare(n int) Spare {
	return Spare{HostName: fmt.Sprintf("wt-p%d", n), MTU: 1450, HostGroup: 77, TxOffloadOff: true}
}

// take is the pair of a pod that takes the spare.
func take(netns string, n int, s Spare) Pair {
	pair := testPair(netns, n)
	pair.HostName, pair.Owner, pair.Spare = s.HostName, SpareOwner(s.HostName), true
	return pair
}

func prepare(t testing.TB, pods *Pods, spares ...Spare) {
	t.Helper()
	if err := errors.Join(pods.Prepare(context.Background(), spares...)...); err != nil {
		t.Fatal(err)
	}
}

// A spare that a pod takes is what Create makes of nothing.
func TestSpareRealTake(t *testing.T) {
	pods, home := newPods(t)
	ctx := context.Background()
	spares := []Spare{testSpare(1), testSpare(2), testSpare(3)}
	for range 2 {
		prepare(t, pods, spares...)
		if found, err := pods.Spares(ctx); err != nil || len(found) != len(spares) {
			t.Fatalf("Spares: %v, %v", found, err)
		}
	}
	checkOffloads(t, home, spares[0].HostName)
	pair := take(nstest.New(t), 2, spares[0])
	nstest.Do(t, home, func() error { // somebody configures whatever there is
		return withLink(spares[0].OtherName(), func(l netlink.Link) error {
			address, err := netlink.ParseAddr("192.0.2.1/24")
			return errors.Join(err, netlink.LinkSetUp(l), netlink.AddrAdd(l, address))
		})
	})
	created, err := pods.Create(ctx, pair)
	if err != nil {
		t.Fatal(err)
	}
	if created.PodMAC.String() != pair.PodMAC.String() || created.HostIndex == 0 || len(created.HostMAC) != 6 {
		t.Errorf("created %+v", created)
	}
	if err := pods.Check(ctx, pair); err != nil {
		t.Error(err)
	}
	checkOffloads(t, pair.Netns, pair.PodName)
	if _, err := pods.Create(ctx, pair); !errors.Is(err, ErrNoSpare) {
		t.Errorf("taken twice: %v", err)
	}
	again := pair
	again.Spare = false
	if _, err := pods.Create(ctx, again); err != nil {
		t.Errorf("the same again: %v", err)
	}
	if err := pods.Check(ctx, again); err != nil {
		t.Error(err)
	}
	if found, err := pods.Spares(ctx); err != nil || len(found) != 2 {
		t.Errorf("Spares after one was taken: %v, %v", found, err)
	}
	if err := pods.Delete(ctx, spares[0].HostName, spares[1].HostName, spares[2].HostName); err != nil {
		t.Error(err)
	}
	if list, err := pods.List(ctx); err != nil || len(list) != 0 {
		t.Errorf("left: %v, %v", list, err)
	}
}

// A spare that somebody has changed is not taken, and not found.
func TestSpareRealDamage(t *testing.T) {
	pods, home := newPods(t)
	ctx := context.Background()
	for name, damage := range map[string]func(s Spare) error{
		"gone": func(s Spare) error { return withLink(s.HostName, netlink.LinkDel) },
		"mtu": func(s Spare) error {
			return withLink(s.HostName, func(l netlink.Link) error { return netlink.LinkSetMTU(l, 1300) })
		},
		"group": func(s Spare) error {
			return withLink(s.HostName, func(l netlink.Link) error { return netlink.LinkSetGroup(l, 5) })
		},
		"other end": func(s Spare) error {
			return withLink(s.OtherName(), func(l netlink.Link) error { return netlink.LinkSetName(l, "wtaway") })
		},
		"alias": func(s Spare) error {
			return withLink(s.HostName, func(l netlink.Link) error { return netlink.LinkSetAlias(l, "mine") })
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := testSpare(7)
			prepare(t, pods, s)
			nstest.Do(t, home, func() error { return damage(s) })
			if _, err := pods.Create(ctx, take(nstest.New(t), 7, s)); !errors.Is(err, ErrNoSpare) {
				t.Errorf("taken: %v", err)
			}
			if found, err := pods.Spares(ctx); err != nil || len(found) != 0 && name != "group" {
				t.Errorf("Spares: %v, %v", found, err)
			}
			nstest.Do(t, home, func() error {
				if link, err := netlink.LinkByName(s.HostName); err == nil {
					return netlink.LinkDel(link)
				}
				return nil
			})
		})
	}
}

// What a Prepare that was interrupted left is found, and completed; what is somebody else's is left alone.
func TestSpareRealInterrupted(t *testing.T) {
	pods, home := newPods(t)
	ctx := context.Background()
	s, foreign := testSpare(8), testSpare(9)
	nstest.Do(t, home, func() error {
		answers, err := pods.conn.do(newVeth(linkEnd{name: s.HostName, mtu: s.MTU, group: 77, netns: -1},
			linkEnd{name: s.OtherName(), mtu: s.MTU, group: 77, netns: -1}))
		bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: foreign.HostName, TxQLen: -1}}
		return errors.Join(err, answers[0].err, netlink.LinkAdd(bridge))
	})
	if found, err := pods.Spares(ctx); err != nil || len(found) != 1 {
		t.Fatalf("Spares: %v, %v", found, err)
	}
	failed := pods.Prepare(ctx, foreign, s)
	if !errors.Is(failed[0], ErrForeign) || failed[1] != nil {
		t.Fatalf("Prepare: %v", failed)
	}
	nstest.Do(t, home, func() error {
		link, err := netlink.LinkByName(foreign.HostName)
		if err == nil && link.Attrs().Alias != "" {
			err = fmt.Errorf("somebody else's link has the alias %q", link.Attrs().Alias)
		}
		return err
	})
	pair := take(nstest.New(t), 8, s)
	if _, err := pods.Create(ctx, pair); err != nil {
		t.Fatal(err)
	}
	if err := pods.Check(ctx, pair); err != nil {
		t.Error(err)
	}
}

// A spare whose new name is taken in the pod, or whose pod goes, leaves nothing.
func TestSpareRealFails(t *testing.T) {
	pods, _ := newPods(t)
	ctx := context.Background()
	s := testSpare(10)
	prepare(t, pods, s)
	pair := take(nstest.New(t), 10, s)
	nstest.Do(t, pair.Netns, func() error {
		return netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: pair.PodName, TxQLen: -1}})
	})
	if _, err := pods.Create(ctx, pair); !errors.Is(err, ErrForeign) {
		t.Errorf("over a foreign link: %v", err)
	}
	if list, err := pods.List(ctx); err != nil || len(list) != 0 {
		t.Errorf("left: %v, %v", list, err)
	}
	prepare(t, pods, s)
	pair.Netns = nstest.New(t)
	if err := unix.Unmount(pair.Netns, unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	if _, err := pods.Create(ctx, pair); !errors.Is(err, ErrNoNamespace) {
		t.Errorf("without a namespace: %v", err)
	}
	if found, err := pods.Spares(ctx); err != nil || len(found) != 1 {
		t.Errorf("the spare is gone: %v, %v", found, err)
	}
}
