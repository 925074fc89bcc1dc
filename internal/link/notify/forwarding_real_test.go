//go:build real

package notify

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"weft.dev/weft/internal/link/nstest"
)

// The kernel reports that forwarding was switched, in the namespace where the watch began. A new device is not reported.
func TestRealWatchForwarding(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	home := nstest.New(t)
	changed := make(chan struct{}, 16)
	watching, stop := context.WithCancel(ctx)
	var ended <-chan struct{}
	nstest.Do(t, home, func() (err error) {
		ended, err = WatchForwarding(watching, func() { changed <- struct{}{} })
		return err
	})
	nstest.Do(t, home, func() error {
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "new0"}, PeerName: "new1"})
	})
	for _, value := range []string{"1", "0"} {
		nstest.Do(t, home, func() error { return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte(value), 0) })
		select {
		case <-changed:
		case <-ctx.Done():
			t.Fatalf("forwarding %s: not reported", value)
		}
	}
	stop()
	<-ended
	if more := len(changed); more > 0 {
		t.Errorf("%d reports too many", more)
	}
}
