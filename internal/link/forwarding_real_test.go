//go:build real

package link

import (
	"context"
	"os"
	"testing"
	"time"

	"weft.dev/weft/internal/link/nstest"
)

// The kernel reports that forwarding was switched, in the namespace where the watch began.
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
}
