// Package ground makes the ground of a lab: namespaces with their mounts, and the links between them. It also watches nodes' addresses
// and restores them on a link that was made again.
package ground

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weft.dev/weft/lab/plan"
)

// Hold is the configuration of a namespace's first process, which sets it up and then sleeps.
type Hold struct {
	RunDir  string      `json:"runDir"` // is mounted at /run; "" leaves the mounts unchanged
	Binds   []plan.Bind `json:"binds"`
	Forward bool        `json:"forward"` // routes packets
	// Forward6 routes IPv6 packets.
	Forward6 bool `json:"forward6,omitempty"`
}

// HoldAttr makes the process the first of a network namespace and of a mount namespace.
func HoldAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS}
}

// RunHold is the body of a holder: it sets up its namespaces and executes `sleep infinity`. That closes descriptor 3, which signals
// success to the parent. On failure it writes the error to descriptor 3 and returns.
func RunHold(config string) error {
	pipe := os.NewFile(3, "ready")
	if pipe == nil {
		return errors.New("descriptor 3 is not open: this command is the lab's own")
	}
	unix.CloseOnExec(3)
	err := hold(config)
	_, _ = pipe.WriteString(err.Error())
	return err
}

func hold(config string) error {
	var h Hold
	if err := json.Unmarshal([]byte(config), &h); err != nil {
		return fmt.Errorf("read the holder's configuration: %w", err)
	}
	if err := h.mounts(); err != nil {
		return err
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find lo: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("set lo up: %w", err)
	}
	if h.Forward {
		if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644); err != nil {
			return fmt.Errorf("turn forwarding on: %w", err)
		}
	}
	if h.Forward6 {
		if err := os.WriteFile("/proc/sys/net/ipv6/conf/all/forwarding", []byte("1"), 0o644); err != nil {
			return fmt.Errorf("turn forwarding of IPv6 on: %w", err)
		}
	}
	sleep, err := lookPath("sleep")
	if err != nil {
		return err
	}
	if err := os.Chdir("/"); err != nil {
		return fmt.Errorf("go to /: %w", err)
	}
	return fmt.Errorf("become %s: %w", sleep, unix.Exec(sleep, []string{"sleep", "infinity"}, os.Environ()))
}

func lookPath(name string) (string, error) {
	for _, dir := range []string{"/bin", "/usr/bin"} {
		path := filepath.Join(dir, name)
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s is neither in /bin nor in /usr/bin", name)
}

// mounts gives the namespace mounts of its own. They do not reach the machine, because propagation is cut first. At the end everything is
// shared again, within the namespace, as on a machine with systemd: container runtimes require that for pods' mounts with propagation.
func (h Hold) mounts() error {
	if err := cutPropagation(); err != nil {
		return err
	}
	if err := ownRoot(); err != nil {
		return err
	}
	if err := dropForeign(); err != nil {
		return err
	}
	for _, b := range h.Binds {
		if err := bind(b.Source, b.Target); err != nil {
			return err
		}
	}
	if h.RunDir != "" {
		if err := os.MkdirAll(filepath.Join(h.RunDir, "netns"), 0o755); err != nil {
			return fmt.Errorf("make the node's /run/netns: %w", err)
		}
		if err := unix.Mount(h.RunDir, "/run", "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("put the node's own /run in place: %w", err)
		}
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("share mounts within the node: %w", err)
	}
	return nil
}

func bind(source, target string) error {
	for _, dir := range []string{source, target} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("make %s: %w", dir, err)
		}
	}
	if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind %s to %s: %w", source, target, err)
	}
	return nil
}

// cutPropagation makes every mount private. In a chroot, / is not a mount, so it processes the mounts one by one.
func cutPropagation() error {
	err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
	if err == nil {
		return nil
	}
	if !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("make mounts private: %w", err)
	}
	points, err := mountPoints(func(mount) bool { return true })
	if err != nil {
		return err
	}
	for _, p := range points {
		if err := unix.Mount("", p, "", unix.MS_PRIVATE, ""); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("make %s private: %w", p, err)
		}
	}
	return nil
}

// ownRoot makes / a mount if it is none, as in a chroot. Container runtimes set the propagation of /, and change to a container's root by
// pivot_root(2), which requires that the old root is a mount whose parent is not shared. Above a chroot there may be an invisible shared
// one. /proc is a mount that is already private, and its unused directory tty serves as the place.
func ownRoot() error {
	const place = "/proc/tty"
	roots, err := mountPoints(func(m mount) bool { return m.point == "/" })
	if err != nil || len(roots) > 0 {
		return err
	}
	if err := unix.Mount("/", place, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("make / a mount: %w", err)
	}
	if err := unix.Chroot(place); err != nil {
		return fmt.Errorf("make / a mount: %w", err)
	}
	if err := unix.Chdir("/"); err != nil {
		return fmt.Errorf("go to /: %w", err)
	}
	return nil
}

// dropForeign unmounts the copies of namespaces that were mounted on the machine when this one was made: they would live as long as this
// one.
func dropForeign() error {
	points, err := mountPoints(func(m mount) bool { return m.fs == "nsfs" })
	if err != nil {
		return err
	}
	for _, p := range slices.Backward(points) {
		if err := unix.Unmount(p, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("let go of %s: %w", p, err)
		}
	}
	return nil
}

type mount struct{ point, fs string }

func mountPoints(accept func(mount) bool) ([]string, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("list mounts: %w", err)
	}
	defer func() { _ = f.Close() }()
	var points []string
	for s := bufio.NewScanner(f); s.Scan(); {
		if m, ok := parseMount(s.Text()); ok && accept(m) {
			points = append(points, m.point)
		}
	}
	return points, nil
}

// parseMount parses a line of mountinfo (proc(5)): the mount point is the fifth field, the type follows the " - ".
func parseMount(line string) (mount, bool) {
	left, right, ok := strings.Cut(line, " - ")
	fields, types := strings.Fields(left), strings.Fields(right)
	if !ok || len(fields) < 5 || len(types) == 0 {
		return mount{}, false
	}
	return mount{point: unescape.Replace(fields[4]), fs: types[0]}, true
}

var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`) //nolint:gochecknoglobals // a constant table

// MountsBelow lists the mount points below a directory, in mount order.
func MountsBelow(dir string) ([]string, error) {
	return mountPoints(func(m mount) bool { return strings.HasPrefix(m.point, dir+"/") })
}
