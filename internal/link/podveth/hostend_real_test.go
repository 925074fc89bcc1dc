//go:build real

package podveth

import (
	"context"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"weft.dev/weft/internal/link/marked"
	"weft.dev/weft/internal/link/notify"
	"weft.dev/weft/internal/link/nstest"
	"weft.dev/weft/internal/link/podlink"
)

// What another program changes on a pod's host veth is reported, and restored; for other links neither happens.
func TestHostEndRealRestore(t *testing.T) {
	pods, home := newPods(t)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	pair := testPair(nstest.New(t), 2)
	if _, err := pods.Create(ctx, pair); err != nil {
		t.Fatal(err)
	}
	var drifts <-chan notify.Drift
	nstest.Do(t, home, func() error {
		engine, err := marked.New(marked.Options{})
		if err != nil {
			return err
		}
		t.Cleanup(engine.Close)
		drifts, err = engine.Watch(ctx)
		return err
	})
	want := podlink.HostEnd{MTU: 1450, Group: 77, Up: true}
	for name, do := range map[string]func(netlink.Link) error{
		"down":   netlink.LinkSetDown,
		"mtu":    func(l netlink.Link) error { return netlink.LinkSetMTU(l, 1400) },
		"narrow": func(l netlink.Link) error { return netlink.LinkSetMTU(l, 1000) }, // below what IPv6 needs
		"group":  func(l netlink.Link) error { return netlink.LinkSetGroup(l, 5) },
	} {
		nstest.Do(t, home, func() error { return withLink(pair.HostName, do) })
		for reported := false; !reported; {
			select {
			case drift := <-drifts:
				reported = drift.End != nil && drift.Device == pair.HostName && *drift.End != want
			case <-ctx.Done():
				t.Fatalf("%s: not reported", name)
			}
		}
		if have, err := pods.HostEnds(ctx); err != nil || len(have) != 1 || have[pair.HostName] == want {
			t.Errorf("%s: %v, %v", name, have, err)
		}
		if err := pods.Restore(ctx, pair.HostName, want); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := pods.Check(ctx, pair); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	nstest.Do(t, home, func() error {
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "wtother"}, PeerName: "wtpeer"})
	})
	for _, name := range []string{"wtother", "wtnone"} {
		if err := pods.Restore(ctx, name, want); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	nstest.Do(t, home, func() error {
		return withLink("wtother", func(l netlink.Link) error {
			if l.Attrs().Group != 0 || l.Attrs().MTU != 1500 {
				t.Errorf("what is not a pod's was changed: %+v", l.Attrs())
			}
			return nil
		})
	})
}
