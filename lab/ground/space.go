package ground

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"time"

	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"weft.dev/weft/lab/process"
)

// NetnsDir is the directory where `ip` finds names of network namespaces.
const NetnsDir = "/run/netns"

// Space is a namespace of a lab, held by a process. It has no mount on the machine that could remain: the name under /run/netns is a
// symlink to the holder's namespace.
type Space struct {
	Name string // under /run/netns
	Pid  int    // of the holder
}

// NetPath returns the path of the network namespace.
func (s Space) NetPath() string { return "/proc/" + strconv.Itoa(s.Pid) + "/ns/net" }

// Enter returns the command that runs argv in the namespace, of network and mounts, without remounting anything (a fresh /sys would hide
// the cgroups from a kubelet).
func (s Space) Enter(argv ...string) []string {
	root := "/proc/" + strconv.Itoa(s.Pid)
	return append([]string{
		"nsenter", "--net=" + root + "/ns/net", "--mount=" + root + "/ns/mnt", "--root=" + root + "/root", "--wd=" + root + "/root", "--",
	}, argv...)
}

// NewSpace makes a namespace: it starts a holder (the program's own hidden command `hold`) and waits until its mounts are done.
func NewSpace(ctx context.Context, g *process.Group, self, name string, h Hold) (Space, error) {
	config, err := json.Marshal(h)
	if err != nil {
		return Space{}, fmt.Errorf("encode the holder of %s: %w", name, err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		return Space{}, fmt.Errorf("make namespace %s: %w", name, err)
	}
	defer func() { _ = r.Close() }()
	err = g.Start(ctx, process.Program{
		Name: "hold/" + name, Argv: []string{self, "hold", string(config)}, NoRestart: true,
		Files: []*os.File{w}, SysProcAttr: HoldAttr(),
	})
	_ = w.Close()
	if err != nil {
		return Space{}, fmt.Errorf("make namespace %s: %w", name, err)
	}
	if err := r.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		return Space{}, fmt.Errorf("make namespace %s: %w", name, err)
	}
	said, err := io.ReadAll(r)
	if err != nil || len(said) > 0 {
		return Space{}, fmt.Errorf("make namespace %s: %s %w", name, said, err)
	}
	s := Space{Name: name, Pid: g.Pid("hold/" + name)}
	if s.Pid == 0 {
		return Space{}, fmt.Errorf("make namespace %s: its holder ended", name)
	}
	return s, s.link()
}

// link gives the namespace its name for `ip -n`.
func (s Space) link() error {
	if err := os.MkdirAll(NetnsDir, 0o755); err != nil {
		return fmt.Errorf("name namespace %s: %w", s.Name, err)
	}
	path := filepath.Join(NetnsDir, s.Name)
	_ = os.Remove(path)
	if err := os.Symlink(s.NetPath(), path); err != nil {
		return fmt.Errorf("name namespace %s: %w", s.Name, err)
	}
	return nil
}

// Handle opens a netlink connection into the namespace; the caller closes it.
func (s Space) Handle() (*netlink.Handle, error) {
	h, err := netns.GetFromPath(s.NetPath())
	if err != nil {
		return nil, fmt.Errorf("open namespace %s: %w", s.Name, err)
	}
	defer func() { _ = h.Close() }()
	nl, err := netlink.NewHandleAt(h, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink in namespace %s: %w", s.Name, err)
	}
	return nl, nil
}

// Do runs f on a thread in the network namespace at path. The thread ends afterwards.
func Do(path string, f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		h, err := netns.GetFromPath(path)
		if err != nil {
			done <- fmt.Errorf("open namespace %s: %w", path, err)
			return
		}
		defer func() { _ = h.Close() }()
		if err := netns.Set(h); err != nil {
			done <- fmt.Errorf("enter namespace %s: %w", path, err)
			return
		}
		done <- f()
	}()
	return <-done
}

// Dial connects to a numeric address from within the namespace: a socket belongs to the namespace where it was made.
func (s Space) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	var c net.Conn
	err := Do(s.NetPath(), func() error {
		var err error
		c, err = new(net.Dialer).DialContext(ctx, network, address)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("connect to %s in %s: %w", address, s.Name, err)
	}
	return c, nil
}

// offloads are the transmit offloads that leave a checksum or a segment incomplete. The userspace datapath forwards frames unchanged:
// with these on, ping works and TCP does not.
var offloads = map[string]bool{ //nolint:gochecknoglobals // a constant table
	"tx-checksum-ip-generic": false, "tx-checksum-sctp": false,
	"tx-generic-segmentation": false, "tx-tcp-segmentation": false, "tx-tcp6-segmentation": false,
	"tx-tcp-ecn-segmentation": false, "tx-tcp-mangleid-segmentation": false, "tx-udp-segmentation": false,
}

// receiveOffload is generic receive offload, as the kernel names it (net/ethtool/common.c).
const receiveOffload = "rx-gro"

// setOffloads turns transmit offloads off on a link, and generic receive offload on if gro.
func setOffloads(link string, gro bool) error {
	e, err := ethtool.NewEthtool()
	if err != nil {
		return fmt.Errorf("open ethtool: %w", err)
	}
	defer e.Close()
	have, err := e.Features(link)
	if err != nil {
		return fmt.Errorf("read the offloads of %s: %w", link, err)
	}
	change := map[string]bool{}
	for name, on := range offloads {
		if have[name] != on {
			change[name] = on
		}
	}
	if gro {
		change[receiveOffload] = true
	}
	if len(change) == 0 {
		return nil
	}
	if err := e.Change(link, change); err != nil {
		return fmt.Errorf("set the offloads of %s: %w", link, err)
	}
	return nil
}
