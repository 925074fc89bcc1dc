//go:build real

package agent

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"weft.dev/weft/internal/agent/cniconf"
	"weft.dev/weft/internal/cni/cniserver"
	"weft.dev/weft/internal/keep"
	"weft.dev/weft/internal/link/nstest"
)

// Changes by other programs of the node's sysctls, of the runtime's configuration and of the agent's socket are reverted and reported.
// Before pods are served, there is no configuration.
func TestNodeIsKept(t *testing.T) {
	dir := t.TempDir()
	socketPath := filepath.Join(dir, "run", "cni", "cni.sock")
	a := &agent{
		opts:      Options{Paths: Paths{CNIConfDir: dir, RunDir: filepath.Join(dir, "run")}, Log: slog.New(slog.DiscardHandler)},
		readiness: &readiness{conf: cniconf.File{Dir: dir, Socket: socketPath}},
	}
	listener, err := cniserver.Listen(socketPath, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close() //nolint:errcheck // of a test
	reported := make(chan string, 16)
	k := a.keeper(listener)
	k.Report = func(thing keep.Thing, put string, err error) {
		if err != nil {
			t.Error(err)
		}
		reported <- thing.Name + ": " + put
	}
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	keeping, stop := context.WithCancel(ctx)
	home, done := nstest.New(t), make(chan struct{})
	go func() {
		defer close(done)
		nstest.Do(t, home, func() error { return keepNode(keeping, k) })
	}()

	conf := filepath.Join(dir, cniconf.Name)
	if _, err := a.readiness.conf.Write(); err != nil {
		t.Fatal(err)
	}
	a.readiness.configured.Store(true)
	<-reported // the sysctls of a new namespace
	for name, damage := range map[string]func() error{
		"sysctls: net.ipv4.ip_forward": func() error { return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("0"), 0) },
		"CNI configuration: " + conf:   func() error { return os.Remove(conf) },
		"socket " + socketPath + ": ":  func() error { return os.Remove(socketPath) },
	} {
		nstest.Do(t, home, damage)
		select {
		case got := <-reported:
			if !strings.HasPrefix(got, name) {
				t.Errorf("reported: %q, want %q", got, name)
			}
		case <-ctx.Done():
			t.Fatalf("%s: not reported", name)
		}
		if err := k.State(); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(conf); err != nil {
		t.Error(err)
	}
	if conn, err := new(net.Dialer).DialContext(ctx, "unix", socketPath); err != nil {
		t.Error(err)
	} else {
		_ = conn.Close()
	}
	stop()
	<-done
}
