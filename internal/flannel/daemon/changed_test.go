package daemon

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"sync"
	"testing"

	"weft.dev/weft/internal/flannel/netconf"
)

// stuck is a store that has nothing of what the daemon waits for, and another configuration.
type stuck struct{ Store }

func (stuck) Config(context.Context) (netconf.Config, error) {
	return netconf.Config{EnableIPv4: true}, nil
}

func (stuck) Changed(context.Context) error { return nil }

func (stuck) Public(ctx context.Context) (none [2]netip.Addr, err error) {
	<-ctx.Done()
	return none, ctx.Err()
}

// TestConfigurationWhileWaiting: a daemon that waits for what its configuration needs begins anew when the configuration changes.
func TestConfigurationWhileWaiting(t *testing.T) {
	d := New(Options{Flags: &netconf.Flags{}, Store: stuck{}, Log: slog.New(slog.DiscardHandler)})
	var running sync.WaitGroup
	err := d.generation(t.Context(), &running)
	running.Wait()
	if again := (*restartError)(nil); !errors.As(err, &again) || !errors.Is(again.reason, errReconfigured) {
		t.Errorf("ended with %v", err)
	}
}
