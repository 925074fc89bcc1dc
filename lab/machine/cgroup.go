package machine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const cgroupMount = "/sys/fs/cgroup"

// ErrNoCgroups reports that no cgroup hierarchy is mounted that could hold a lab's processes.
var ErrNoCgroups = errors.New("no cgroup hierarchy under /sys/fs/cgroup (in a chroot: mount --rbind /sys CHROOT/sys)")

// Hierarchies lists the mounted cgroup hierarchies: one for cgroup v2 alone, one per controller for v1 and hybrid.
func Hierarchies() ([]string, error) {
	if isCgroup(cgroupMount) {
		return []string{cgroupMount}, nil
	}
	entries, err := os.ReadDir(cgroupMount)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoCgroups, err)
	}
	var found []string
	for _, e := range entries {
		path := filepath.Join(cgroupMount, e.Name())
		if e.IsDir() && isCgroup(path) { // symlinks such as cpu,cpuacct name hierarchies that are already in the list
			found = append(found, path)
		}
	}
	if len(found) == 0 {
		return nil, ErrNoCgroups
	}
	return found, nil
}

func isCgroup(path string) bool {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return false
	}
	return st.Type == unix.CGROUP2_SUPER_MAGIC || st.Type == unix.CGROUP_SUPER_MAGIC
}

// tracking is the hierarchy in which every process of a lab can be found: cgroup v2 if there is one, because nothing in a hybrid set-up
// moves processes there; otherwise any.
func tracking() (string, error) {
	all, err := Hierarchies()
	if err != nil {
		return "", err
	}
	for _, h := range all {
		var st unix.Statfs_t
		if unix.Statfs(h, &st) == nil && st.Type == unix.CGROUP2_SUPER_MAGIC {
			return h, nil
		}
	}
	return all[0], nil
}

// JoinCgroup makes the calling process, and so all its later children, members of the lab's cgroup. Double forks and new sessions do not
// remove them from it.
func JoinCgroup(lab string) error {
	h, err := tracking()
	if err != nil {
		return err
	}
	dir := filepath.Join(h, lab, "lab")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make the lab's cgroup: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0o644); err != nil {
		return fmt.Errorf("join the lab's cgroup: %w", err)
	}
	return nil
}

// MakeCgroups makes a cgroup in every hierarchy, as the root of a kubelet's pods; cpuset must be filled by hand.
func MakeCgroups(path string) error {
	all, err := Hierarchies()
	if err != nil {
		return err
	}
	for _, h := range all {
		dir := h
		for part := range strings.SplitSeq(path, "/") {
			parent := dir
			dir = filepath.Join(dir, part)
			if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
				return fmt.Errorf("make cgroup %s: %w", dir, err)
			}
			if err := inherit(parent, dir); err != nil {
				return err
			}
			if h == cgroupMount {
				passOn(parent)
			}
		}
	}
	return nil
}

// passOn enables all controllers below a cgroup v2. It is not used in a hybrid set-up: kubelets use v1 there, and the machine's root
// group must not change. Controllers that cannot be enabled are reported by the kubelet.
func passOn(parent string) {
	raw, err := os.ReadFile(filepath.Join(parent, "cgroup.controllers"))
	if err != nil {
		return
	}
	for c := range strings.FieldsSeq(string(raw)) {
		_ = os.WriteFile(filepath.Join(parent, "cgroup.subtree_control"), []byte("+"+c), 0o644)
	}
}

// inherit copies the settings that an empty cgroup lacks: cpuset's sets in v1.
func inherit(parent, dir string) error {
	for _, f := range []string{"cpuset.cpus", "cpuset.mems"} {
		have, err := os.ReadFile(filepath.Join(dir, f))
		if err != nil || strings.TrimSpace(string(have)) != "" {
			continue
		}
		want, err := os.ReadFile(filepath.Join(parent, f))
		if err != nil || strings.TrimSpace(string(want)) == "" {
			continue // cgroup v2: empty means all
		}
		if err := os.WriteFile(filepath.Join(dir, f), want, 0o644); err != nil {
			return fmt.Errorf("fill %s of cgroup %s: %w", f, dir, err)
		}
	}
	return nil
}

// Processes lists the processes in a lab's cgroups of all hierarchies, without zombies.
func Processes(lab string) ([]int, error) {
	all, err := Hierarchies()
	if errors.Is(err, ErrNoCgroups) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, h := range all {
		err := filepath.WalkDir(filepath.Join(h, lab), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.Name() != "cgroup.procs" {
				return skipGone(err)
			}
			raw, err := os.ReadFile(path)
			if err != nil {
				return skipGone(err)
			}
			for f := range strings.FieldsSeq(string(raw)) {
				if pid, err := strconv.Atoi(f); err == nil && pid > 0 && !slices.Contains(pids, pid) && alive(pid) {
					pids = append(pids, pid)
				}
			}
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("list the processes of cgroup %s: %w", lab, err)
		}
	}
	return pids, nil
}

func skipGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil
	}
	return err
}

func alive(pid int) bool {
	s, err := Stat(pid)
	return err == nil && s.State != 'Z'
}

// KillCgroup kills all processes in a lab's cgroups below sub ("" for all), until none is left or the context ends.
func KillCgroup(ctx context.Context, lab, sub string) error {
	group := filepath.Join(lab, sub)
	for {
		pids, err := Processes(group)
		if err != nil {
			return err
		}
		pids = slices.DeleteFunc(pids, func(p int) bool { return p == os.Getpid() })
		if len(pids) == 0 {
			return nil
		}
		for _, p := range pids {
			killMember(p, group)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("processes %v of cgroup %s do not end: %w", pids, group, ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Members returns the identities of the processes in a lab's cgroups.
func Members(lab string) []ProcStat {
	pids, err := Processes(lab)
	if err != nil {
		return nil // there is no process to wait for
	}
	var members []ProcStat
	for _, pid := range pids {
		if s, err := Stat(pid); err == nil && pid != os.Getpid() {
			members = append(members, s)
		}
	}
	return members
}

// reapTimeout is the time limit for the machine's init process to reap ended processes; some do so only from time to time.
const reapTimeout = 10 * time.Second

// AwaitReaped waits until ended processes are in no listing any more. One that remains after the time limit is a zombie of another
// parent, and no error: it holds no resources.
func AwaitReaped(ctx context.Context, processes []ProcStat) error {
	ctx, cancel := context.WithTimeout(ctx, reapTimeout)
	defer cancel()
	for _, p := range processes {
		for {
			now, err := Stat(p.Pid)
			if err != nil || now.Start != p.Start {
				break
			}
			if ctx.Err() != nil && now.State == 'Z' {
				break
			}
			if ctx.Err() != nil {
				return fmt.Errorf("process %d does not end: %w", p.Pid, ctx.Err())
			}
			<-time.After(5 * time.Millisecond)
		}
	}
	return nil
}

// killMember kills a process that is a member of the group. It opens the pidfd before it checks the membership, so that it never signals
// another process that has got the same PID.
func killMember(pid int, group string) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return
	}
	defer func() { _ = unix.Close(fd) }()
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup")
	if err != nil || !memberOf(string(raw), group) {
		return
	}
	_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
}

// memberOf parses /proc/PID/cgroup: lines of hierarchy:controllers:path.
func memberOf(text, group string) bool {
	for line := range strings.Lines(text) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) == 3 && (parts[2] == "/"+group || strings.HasPrefix(parts[2], "/"+group+"/")) {
			return true
		}
	}
	return false
}

// RemoveCgroups removes a lab's empty cgroups from every hierarchy. It retries until the context ends: the kernel removes the last
// process a little later than it reports.
func RemoveCgroups(ctx context.Context, lab string) error {
	all, err := Hierarchies()
	if errors.Is(err, ErrNoCgroups) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, h := range all {
		for {
			err := removeTree(filepath.Join(h, lab))
			if err == nil {
				break
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("remove cgroup %s: %w", filepath.Join(h, lab), err)
			case <-time.After(20 * time.Millisecond):
			}
		}
	}
	return nil
}

func removeTree(root string) error {
	var dirs []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return skipGone(err)
		}
		if d.IsDir() {
			dirs = append(dirs, path)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, d := range slices.Backward(dirs) {
		if err := unix.Rmdir(d); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove %s: %w", d, err)
		}
	}
	return nil
}
