// Package machine manages what labs share on one machine, and restores it: sysctls, directories that nodes mount over, the addresses of
// links to the host, cgroups. Every change that a lab makes outside of its own namespaces and directories is recorded before it is made,
// so that a lab whose processes were all killed can still be undone.
package machine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"weft.dev/weft/lab/plan"
)

// Ledger is the record of all labs' changes of the machine, a file under plan.StateRoot.
type Ledger struct {
	BootID  string            `json:"bootID"`  // sysctls of another boot are not restored
	Sysctls map[string]string `json:"sysctls"` // by name, the value before the first lab
	Dirs    []string          `json:"dirs"`    // made by labs, parents before children
	Labs    map[string]Entry  `json:"labs"`
}

// Entry is the record of one lab.
type Entry struct {
	HostNet netip.Prefix `json:"hostNet"` // the /30 between the root namespace and the lab's control plane
	Config  plan.Config  `json:"config"`
}

// HostIP is the machine's address on the link to the lab.
func (e Entry) HostIP() netip.Addr { return e.HostNet.Addr().Next() }

// APIHost is the control plane's address on that link: the machine reaches the API server there.
func (e Entry) APIHost() netip.Addr { return e.HostIP().Next() }

// Lock is the machine-wide lock for changes of the ledger.
type Lock struct{ dir *os.File }

// Acquire waits for the lock until the context ends. The lock is on the directory itself, so that no lock file remains.
func Acquire(ctx context.Context) (*Lock, error) {
	for {
		l, err := tryLock()
		if err != nil || l != nil {
			return l, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("another weft-lab is changing this machine's labs: %w", ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// tryLock returns nil without an error if another process holds the lock, or has just removed the directory.
func tryLock() (*Lock, error) {
	if err := os.MkdirAll(plan.RunRoot, 0o755); err != nil {
		return nil, fmt.Errorf("make %s: %w (weft-lab needs root)", plan.RunRoot, err)
	}
	dir, err := os.Open(plan.RunRoot)
	if err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return nil, nil
		}
		return nil, fmt.Errorf("open %s: %w", plan.RunRoot, err)
	}
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = dir.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, nil
		}
		return nil, fmt.Errorf("lock %s: %w", plan.RunRoot, err)
	}
	if !sameDir(dir) {
		_ = dir.Close()
		return nil, nil
	}
	return &Lock{dir: dir}, nil
}

// sameDir reports whether the path of the open directory still names it.
func sameDir(dir *os.File) bool {
	held, err := dir.Stat()
	if err != nil {
		return false
	}
	now, err := os.Stat(dir.Name())
	return err == nil && os.SameFile(held, now)
}

// Release releases the lock, and removes the directories that no lab needs any more.
func (l *Lock) Release() {
	_ = os.Remove(plan.RunRoot) // fails on purpose while there is a lab
	_ = l.dir.Close()
}

const ledgerFile = plan.StateRoot + "/machine.json"

// ReadLedger reads the ledger; without a file it is empty.
func ReadLedger() (Ledger, error) {
	l := Ledger{BootID: bootID(), Sysctls: map[string]string{}, Labs: map[string]Entry{}}
	raw, err := os.ReadFile(ledgerFile)
	if errors.Is(err, os.ErrNotExist) {
		return l, nil
	}
	if err != nil {
		return l, fmt.Errorf("read the ledger of labs: %w", err)
	}
	var kept Ledger
	if err := json.Unmarshal(raw, &kept); err != nil {
		return l, fmt.Errorf("read %s: %w (written by an interrupted weft-lab? `weft-lab down` every lab, then remove it)", ledgerFile, err)
	}
	if kept.Labs != nil {
		l.Labs = kept.Labs
	}
	l.Dirs = kept.Dirs
	if kept.BootID == l.BootID && kept.Sysctls != nil {
		l.Sysctls = kept.Sysctls
	}
	return l, nil
}

// write replaces the ledger; an empty one is removed with its directory.
func (l Ledger) write() error {
	if len(l.Labs) == 0 && len(l.Dirs) == 0 && len(l.Sysctls) == 0 {
		if err := os.Remove(ledgerFile); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove the ledger of labs: %w", err)
		}
		_ = os.Remove(plan.StateRoot) // fails on purpose while the directory has other files
		return nil
	}
	raw, err := json.MarshalIndent(l, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the ledger of labs: %w", err)
	}
	return WriteFile(ledgerFile, raw, 0o600)
}

// WriteFile replaces a file in one step, so that neither a reader nor a crash leads to half of it.
func WriteFile(path string, data []byte, mode os.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	half := path + ".new"
	if err := os.WriteFile(half, data, mode); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := os.Rename(half, path); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

func bootID() string {
	raw, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(raw))
}

// sysctlsKept are set by labs or by their kubelets, and apply to the whole machine.
var sysctlsKept = []string{ //nolint:gochecknoglobals // a constant table
	"net/core/rmem_default",
	// kubelet sets these at its start (k8s.io/kubernetes/pkg/kubelet/cm, setupKernelTunables)
	"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops",
	"kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes",
	// A kubelet and a containerd need about ten inotify instances per node; the default of 128 applies to all processes of root.
	"fs/inotify/max_user_instances",
}

// sysctlsSet are the lab's own settings. The receive buffer is that of the packet sockets by which the userspace datapath reads links:
// with the default of 212992 bytes it loses 4 to 18 % at 20,000 packets per second, with 8 MB none of 594,000.
var sysctlsSet = map[string]string{ //nolint:gochecknoglobals // a constant table
	"net/core/rmem_default":         "8388608",
	"fs/inotify/max_user_instances": "1024",
}

// Enter records a lab in the ledger and makes a lab's changes of the machine. The lock must be held.
func Enter(cfg plan.Config, taken []netip.Prefix) (Entry, error) {
	l, err := ReadLedger()
	if err != nil {
		return Entry{}, err
	}
	for _, e := range l.Labs {
		taken = append(taken, e.HostNet)
	}
	hostNet, err := plan.PickHostNet(cfg.Name, taken)
	if err != nil {
		return Entry{}, err
	}
	entry := Entry{HostNet: hostNet, Config: cfg}
	l.Labs[cfg.Name] = entry
	l.keepSysctls()
	missing := missingDirs(plan.New(cfg).AllNodes())
	l.Dirs = append(l.Dirs, missing...)
	if err := l.write(); err != nil {
		return Entry{}, err
	}
	for _, d := range missing {
		if err := os.Mkdir(d, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			return Entry{}, fmt.Errorf("make the mount point %s: %w", d, err)
		}
	}
	return entry, setSysctls()
}

func (l Ledger) keepSysctls() {
	for _, name := range sysctlsKept {
		if _, known := l.Sysctls[name]; known {
			continue
		}
		if raw, err := os.ReadFile(filepath.Join("/proc/sys", name)); err == nil {
			l.Sysctls[name] = strings.TrimSpace(string(raw))
		}
	}
}

func setSysctls() error {
	for name, value := range sysctlsSet {
		if err := os.WriteFile(filepath.Join("/proc/sys", name), []byte(value), 0o644); err != nil {
			return fmt.Errorf("set sysctl %s: %w", strings.ReplaceAll(name, "/", "."), err)
		}
	}
	return nil
}

// missingDirs lists the mount points that do not exist, parents first, and the other directories that a lab makes on the machine.
func missingDirs(nodes []plan.Node) []string {
	var missing []string
	add := func(path string) {
		var chain []string
		for p := path; p != "/"; p = filepath.Dir(p) {
			if _, err := os.Lstat(p); err == nil {
				break
			}
			chain = append(chain, p)
		}
		slices.Reverse(chain)
		for _, p := range chain {
			if !slices.Contains(missing, p) {
				missing = append(missing, p)
			}
		}
	}
	add("/run/netns")
	for _, n := range nodes {
		for _, b := range n.Binds() {
			add(b.Target)
		}
	}
	return missing
}

// Leave removes a lab from the ledger; the last one restores the machine. The lock must be held, and nothing of the lab may run any more.
func Leave(name string) error {
	l, err := ReadLedger()
	if err != nil {
		return err
	}
	delete(l.Labs, name)
	if len(l.Labs) > 0 {
		return l.write()
	}
	var errs []error
	for _, s := range sortedKeys(l.Sysctls) {
		path := filepath.Join("/proc/sys", s)
		if now, err := os.ReadFile(path); err == nil && strings.TrimSpace(string(now)) == l.Sysctls[s] {
			continue
		}
		if err := os.WriteFile(path, []byte(l.Sysctls[s]), 0o644); err != nil {
			errs = append(errs, fmt.Errorf("put sysctl %s back: %w", s, err))
		}
	}
	for _, d := range slices.Backward(l.Dirs) {
		if err := os.Remove(d); err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EBUSY) {
			errs = append(errs, fmt.Errorf("remove the mount point %s: %w", d, err))
		}
	}
	l.Sysctls, l.Dirs = nil, nil
	return errors.Join(append(errs, l.write())...)
}

func sortedKeys(m map[string]string) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}
