//go:build real

package agent

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/rest"

	"weft.dev/weft/internal/agent/cniconf"
	"weft.dev/weft/internal/agent/networks"
	"weft.dev/weft/internal/cni/cniserver"
	"weft.dev/weft/internal/keep"
	"weft.dev/weft/internal/link/nstest"
	"weft.dev/weft/internal/network"
)

// flatConf is the name of the configuration of a network other than the overlay.
const flatConf = "20-flat.conflist"

// keptNode is the keeper of a node in a namespace of its own, with the networks overlay and flat.
type keptNode struct {
	*keep.Keeper
	readiness         *readiness
	home, dir, socket string
	// restored gets what is restored.
	restored chan string
}

func newKeptNode(t *testing.T) *keptNode {
	t.Helper()
	dir := t.TempDir()
	n := &keptNode{home: nstest.New(t), dir: dir, socket: filepath.Join(dir, "run", "cni", "cni.sock"), restored: make(chan string, 16)}
	flat := network.Kind{Name: "flat", CNI: network.Conflist{Name: flatConf, Content: func() ([]byte, error) { return []byte("flat"), nil }}}
	all, err := networks.New(networks.Options{Kinds: []network.Kind{flat}, Config: &rest.Config{}})
	if err != nil {
		t.Fatal(err)
	}
	n.readiness = &readiness{conf: cniconf.File{Dir: dir, Socket: n.socket}, networks: all}
	listener, err := cniserver.Listen(n.socket, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	a := &agent{opts: Options{Log: slog.New(slog.DiscardHandler)}, readiness: n.readiness}
	n.Keeper = a.keeper(listener)
	n.Report = func(thing keep.Thing, put string, err error) {
		if err != nil {
			t.Error(err)
		}
		n.restored <- thing.Name + ": " + put
	}
	return n
}

// damages are changes by hand, by the beginning of the report of what is restored. conf is the configuration that the agent has written.
func (n *keptNode) damages(what, conf string) map[string]func() error {
	return map[string]func() error{
		"sysctls: net.ipv4.ip_forward": func() error { return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("0"), 0) },
		what + ": " + n.path(conf):     func() error { return os.Remove(n.path(conf)) },
		"socket " + n.socket + ": ":    func() error { return os.Remove(n.socket) },
	}
}

func (n *keptNode) path(conf string) string { return filepath.Join(n.dir, conf) }

// intact checks that a configuration and the socket are there, and nothing failed.
func (n *keptNode) intact(t *testing.T, conf string) {
	t.Helper()
	if err := n.State(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(n.path(conf)); err != nil {
		t.Error(err)
	}
	if conn, err := new(net.Dialer).DialContext(t.Context(), "unix", n.socket); err != nil {
		t.Error(err)
	} else {
		_ = conn.Close()
	}
}

// The kernel's and inotify's events make the keeper restore and report what other programs change of the node's sysctls, of the runtime's
// configuration and of the agent's socket: the keeper's period does not end during the test. Before pods are served, there is no
// configuration. Later it is that of the default network, whichever that is, and only that one.
func TestNodeIsKept(t *testing.T) {
	n := newKeptNode(t)
	n.Period = 24 * time.Hour
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	keeping, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		nstest.Do(t, n.home, func() error { return keepNode(keeping, n.Keeper) })
	}()
	<-n.restored // the sysctls of a new namespace
	if err := n.readiness.writeOverlay(); err != nil {
		t.Fatal(err)
	}
	damage := func(what, conf string) {
		t.Helper()
		for name, change := range n.damages(what, conf) {
			nstest.Do(t, n.home, change)
			select {
			case got := <-n.restored:
				if !strings.HasPrefix(got, name) {
					t.Errorf("reported: %q, want %q", got, name)
				}
			case <-ctx.Done():
				t.Fatalf("%s: not reported", name)
			}
		}
		n.intact(t, conf)
	}
	damage("CNI configuration", cniconf.Name)
	if err := errors.Join(n.readiness.write(flatConf, []byte("flat")), os.Remove(n.path(cniconf.Name))); err != nil {
		t.Fatal(err)
	}
	damage("CNI configuration of network flat", flatConf)
	if _, err := os.Stat(n.path(cniconf.Name)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the configuration of a network that is not the default: %v", err)
	}
	stop()
	<-done
}

// Without events the same is restored when the keeper's period ends.
func TestNodeIsKeptWithoutEvents(t *testing.T) {
	n := newKeptNode(t)
	if err := n.readiness.write(flatConf, []byte("flat")); err != nil {
		t.Fatal(err)
	}
	for i := range n.Things {
		n.Things[i].Path = ""
	}
	synctest.Test(t, func(t *testing.T) {
		n.restored = make(chan string, 16)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			nstest.Do(t, n.home, func() error { return n.Run(ctx, nil) })
		}()
		<-n.restored // the sysctls of a new namespace
		for name, change := range n.damages("CNI configuration of network flat", flatConf) {
			changed := time.Now()
			nstest.Do(t, n.home, change)
			if got := <-n.restored; !strings.HasPrefix(got, name) {
				t.Errorf("reported: %q, want %q", got, name)
			}
			if took := time.Since(changed); took > keep.DefaultPeriod {
				t.Errorf("%s: restored after %s, want at most %s", name, took, keep.DefaultPeriod)
			}
		}
		cancel()
		<-done
	})
	n.intact(t, flatConf)
}
