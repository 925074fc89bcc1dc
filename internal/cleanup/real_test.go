//go:build real

package cleanup_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/cleanup"
	"weft.dev/weft/internal/cni/portspace"
	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/overlay/clean"
)

// options returns the options for a node of the test: a root, and a network namespace for the duration of the test.
func options(t *testing.T) (o cleanup.Options, reported *[]string) {
	t.Helper()
	runtime.LockOSThread() // never unlocked: the thread ends with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	reported = &[]string{}
	o = cleanup.Options{
		Root: t.TempDir(), OVSRunDir: "/run/openvswitch", StateDir: "/var/lib/weft", RunDir: "/run/weft", CNIConfDir: "/etc/cni/net.d",
		CNIConf: "10-weft.conflist", Plugin: "/opt/cni/bin/weft", Socket: "/run/weft/cni/cni.sock", Records: "/var/lib/weft/attachments", Ports: "/run/weft/cni/ports",
		Parts: []cleanup.Part{clean.Part()}, Report: func(what string) { *reported = append(*reported, what) },
	}
	for _, file := range []string{
		"etc/cni/net.d/10-weft.conflist", "etc/cni/net.d/20-other.conflist", "etc/cni/net.d/.weft-1", "opt/cni/bin/weft",
		"opt/cni/bin/.weft-2", "opt/cni/bin/bridge", "var/lib/weft/attachments/a.json", "run/weft/admin.sock",
	} {
		path := filepath.Join(o.Root, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Dir(o.At(o.Ports)), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := portspace.Ensure(o.At(o.Ports)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := portspace.Remove(o.At(o.Ports)); err != nil {
			t.Error(err)
		}
	})
	return o, reported
}

// Weft's files are removed and other files stay. A second run finds nothing to do.
func TestFiles(t *testing.T) {
	o, reported := options(t)
	if err := cleanup.Run(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"file /etc/cni/net.d/.weft-1", "file /etc/cni/net.d/10-weft.conflist", "file /opt/cni/bin/.weft-2", "file /opt/cni/bin/weft",
		"file /run/weft", "file /var/lib/weft", "namespace /run/weft/cni/ports",
	}
	slices.Sort(*reported)
	if !slices.Equal(*reported, want) {
		t.Errorf("removed %q, want %q", *reported, want)
	}
	for _, stays := range []string{"etc/cni/net.d/20-other.conflist", "opt/cni/bin/bridge"} {
		if _, err := os.Stat(filepath.Join(o.Root, stays)); err != nil {
			t.Error(err)
		}
	}
	*reported = nil
	if err := cleanup.Run(t.Context(), o); err != nil || len(*reported) > 0 {
		t.Errorf("a second run: %v, removed %q", err, *reported)
	}
}

// While an agent runs, nothing is removed, because the agent would restore it.
func TestRefusesWhileAnAgentRuns(t *testing.T) {
	o, reported := options(t)
	if err := os.MkdirAll(filepath.Dir(o.At(o.Socket)), 0o755); err != nil {
		t.Fatal(err)
	}
	listener, err := new(net.ListenConfig).Listen(t.Context(), "unix", o.At(o.Socket))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	if err := cleanup.Run(t.Context(), o); !errors.Is(err, cleanup.ErrAgentRuns) || len(*reported) > 0 {
		t.Errorf("%v, removed %q", err, *reported)
	}
}

// An agent whose socket file was removed still runs: it holds the lock of its records. Once it ends, the node can be cleaned.
func TestRefusesWhileRecordsAreLocked(t *testing.T) {
	o, reported := options(t)
	store, err := attach.Open(o.At(o.Records))
	if err != nil {
		t.Fatal(err)
	}
	if err := cleanup.Run(t.Context(), o); !errors.Is(err, cleanup.ErrAgentRuns) || len(*reported) > 0 {
		t.Errorf("%v, removed %q", err, *reported)
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	if err := cleanup.Run(t.Context(), o); err != nil {
		t.Error(err)
	}
}

// A root that does not exist is an error, and does not count as a clean node.
func TestRootThatDoesNotExist(t *testing.T) {
	o, reported := options(t)
	o.Root = filepath.Join(o.Root, "nope")
	if err := cleanup.Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), o.Root) || len(*reported) > 0 {
		t.Errorf("%v, removed %q", err, *reported)
	}
}

// If the database does not answer, the error says what to do, and everything else is still removed.
func TestSwitchDoesNotAnswer(t *testing.T) {
	o, reported := options(t)
	if err := os.MkdirAll(o.At(o.OVSRunDir), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(o.At(o.OVSRunDir), "db.sock"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	beside := false
	o.Parts = append(o.Parts, cleanup.Part{Name: "beside", Run: func(context.Context, cleanup.Options) error {
		beside = true
		return errors.New("in use")
	}})
	err := cleanup.Run(t.Context(), o)
	if err == nil || !slices.Contains(*reported, "file /var/lib/weft") || !beside {
		t.Errorf("%v, removed %q", err, *reported)
	}
	for _, network := range []string{"network overlay: start Open vSwitch", "network beside: in use"} {
		if err == nil || !strings.Contains(err.Error(), network) {
			t.Errorf("error %v does not contain %q", err, network)
		}
	}
}

// Egress IPs are removed from an interface of the node, and its other addresses stay.
func TestAddresses(t *testing.T) {
	o, reported := options(t)
	pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "uplink"}, PeerName: "far"}
	if err := netlink.LinkAdd(pair); err != nil {
		t.Fatal(err)
	}
	for address, label := range map[string]string{"192.0.2.1/24": "", "192.0.2.100/32": link.AddressLabel, "192.0.2.9/32": "uplink:mine"} {
		addr, err := netlink.ParseAddr(address)
		if err != nil {
			t.Fatal(err)
		}
		addr.Label = label
		if err := netlink.AddrAdd(pair, addr); err != nil {
			t.Fatal(err)
		}
	}
	if err := cleanup.Run(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(*reported, "address 192.0.2.100 dev uplink") {
		t.Errorf("removed %q", *reported)
	}
	left, err := netlink.AddrList(pair, netlink.FAMILY_V4)
	if err != nil || len(left) != 2 {
		t.Errorf("left are %v: %v", left, err)
	}
}
