//go:build real

package marked_test

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/link/linktest"
	"weft.dev/weft/internal/link/marked"
	"weft.dev/weft/internal/link/nstest"
	"weft.dev/weft/internal/reconcile"
)

// TestRealWatchPorts: each change of a bridge's port by another program is reported for this port, and none of the engine's own. The port is
// a pod's host veth.
func TestRealWatchPorts(t *testing.T) {
	home := nstest.New(t)
	engine := newEngine(t, home, marked.Options{})
	const port, other, marker = "wtport", "wtother", "wtmark"
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	nstest.Do(t, home, func() error {
		for _, name := range []string{port, other} {
			veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name, TxQLen: -1}, PeerName: name + "p", PeerTxQLen: -1}
			if err := netlink.LinkAdd(veth); err != nil {
				return err
			}
			if err := errors.Join(netlink.LinkSetAlias(veth, link.PodAliasPrefix+"c1/eth0"), netlink.LinkSetUp(veth)); err != nil {
				return err
			}
		}
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: marker, TxQLen: -1}, PeerName: marker + "p", PeerTxQLen: -1})
	})
	drifts, err := engine.Watch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	commit := func(change reconcile.Change[link.Key, link.Item]) {
		t.Helper()
		if err := engine.Commit(ctx, change); err != nil {
			t.Fatal(err)
		}
	}
	desired := linktest.Items(
		&link.Bridge{Name: "wtbr", Owner: "fabric"},
		&link.Device{Name: "wtbr", Owner: "fabric", Up: true},
		&link.Device{Name: marker, Owner: "fabric"},
		&link.BridgePort{Bridge: "wtbr", Device: port, Hairpin: true, MAC: [6]byte{0x0a, 0x58, 10, 244, 0, 2}},
		&link.BridgePort{Bridge: "wtbr", Device: other, MAC: [6]byte{0x0a, 0x58, 10, 244, 0, 5}},
	)
	commit(reconcile.Change[link.Key, link.Item]{Set: desired})
	run := func(command string) {
		t.Helper()
		nstest.Do(t, home, func() error {
			args := strings.Fields(command)
			if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
				return fmt.Errorf("%s: %w: %s", command, err, out)
			}
			return nil
		})
	}
	marks := 0
	// reported returns the ports reported since the last call.
	reported := func() map[string]bool {
		t.Helper()
		marks++
		run(fmt.Sprintf("ip link set %s mtu %d", marker, 1400+marks))
		found := map[string]bool{}
		for deadline := time.After(time.Minute); ; {
			select {
			case drift := <-drifts:
				if drift.Kind == link.KindBridgePort {
					found[drift.Device] = true
				}
				if drift.Device == marker {
					return found
				}
			case <-deadline:
				t.Fatal("the change of the marker is not reported")
			}
		}
	}
	repair := func() {
		t.Helper()
		have, err := engine.Read(ctx)
		if err != nil {
			t.Fatal(err)
		}
		commit(reconcile.Diff(desired, have))
	}
	if got := reported(); len(got) != 0 {
		t.Errorf("reported of the engine's own changes: %v", got)
	}
	for _, change := range []string{
		"bridge link set dev wtport hairpin off",
		"bridge link set dev wtport learning on",
		"bridge link set dev wtport flood on",
		"bridge link set dev wtport isolated on",
		"ip link set wtport type bridge_slave isolated on",
		"ip link set wtport nomaster",
		"bridge fdb del 0a:58:0a:f4:00:02 dev wtport master",
		"bridge fdb add 0a:58:0a:f4:00:03 dev wtport master static",
		"bridge fdb replace 0a:58:0a:f4:00:02 dev wtother master static",
		"bridge link set dev wtother hairpin on",
	} {
		run(change)
		got := reported()
		want := port
		if strings.Contains(change, "dev "+other) {
			want = other
		}
		if !got[want] {
			t.Errorf("%s: not reported", change)
		}
		repair()
		if got := reported(); len(got) != 0 {
			t.Errorf("%s: the repair is reported: %v", change, got)
		}
	}
	delete(desired, link.Key{Kind: link.KindBridgePort, Name: port})
	repair()
	if got := reported(); len(got) != 0 {
		t.Errorf("reported of the port's removal: %v", got)
	}
}
