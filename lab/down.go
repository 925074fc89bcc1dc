package lab

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"weft.dev/weft/lab/ground"
	"weft.dev/weft/lab/machine"
	"weft.dev/weft/lab/plan"
	"weft.dev/weft/lab/report"
	"weft.dev/weft/lab/supervisor"
)

// Down removes a lab completely: no process, namespace, link, mount, cgroup or file remains. The last lab also restores the machine's
// sysctls. It works on a lab in any state, also on the rest of a killed one, and on none at all.
func Down(ctx context.Context, name string, progress report.Progress) error {
	if err := plan.CheckName(name); err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return ErrRoot
	}
	lock, err := machine.Acquire(ctx)
	if err != nil {
		return err
	}
	defer lock.Release()
	return remove(ctx, name, progress)
}

// remove requires the machine's lock. The lab's name is enough to find everything.
func remove(ctx context.Context, name string, progress report.Progress) error {
	l := plan.New(plan.Config{Name: name, Nodes: plan.MaxNodes})
	if !traces(l) {
		return nil
	}
	began := time.Now()
	if progress != nil {
		progress(report.Event{Step: "take lab " + name + " down", State: report.Begin})
	}
	members := machine.Members(l.Cgroup)
	stop(ctx, l)
	err := sweep(ctx, l)
	if err == nil {
		err = machine.AwaitReaped(ctx, append(members, machine.Members(l.Cgroup)...))
	}
	if progress != nil {
		e := report.Event{Step: "take lab " + name + " down", State: report.Done, Took: time.Since(began)}
		if err != nil {
			e.State, e.Text = report.Fail, err.Error()
		}
		progress(e)
	}
	return err
}

// traces reports whether anything of a lab exists.
func traces(l plan.Lab) bool {
	ledger, err := machine.ReadLedger()
	if err != nil {
		return true
	}
	if _, known := ledger.Labs[l.Name]; known {
		return true
	}
	for _, path := range []string{l.Dir, l.RunDir} {
		if _, err := os.Lstat(path); err == nil {
			return true
		}
	}
	return false
}

// stop makes the supervisor end the lab in order, if one runs.
func stop(ctx context.Context, l plan.Lab) {
	pidFile := supervisor.PidFile(l)
	if machine.ReadPid(pidFile) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	res, err := ask(ctx, l, http.MethodPost, "/down")
	if err == nil {
		_ = res.Body.Close()
	}
	for err == nil && machine.ReadPid(pidFile) != 0 && ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-time.After(10 * time.Millisecond):
		}
	}
	_ = machine.Kill(pidFile, unix.SIGKILL) // the next step finds everything that it leaves
}

// sweep removes the rest of a lab by its names. It tries every part, even if others fail.
func sweep(ctx context.Context, l plan.Lab) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	errs := []error{
		machine.KillCgroup(ctx, l.Cgroup, ""),
		ground.RemoveHostLink(l),
		removeNames(l),
		machine.RemoveCgroups(ctx, l.Cgroup),
	}
	for _, dir := range []string{l.RunDir, l.Dir} {
		errs = append(errs, removeDir(dir))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("take lab %s down: %w (`weft-lab down --name %s` may be repeated)", l.Name, err, l.Name)
	}
	return machine.Leave(l.Name)
}

// removeNames removes the names of namespaces. It compares the lab's part of a name as a whole, so that another lab's names never match.
func removeNames(l plan.Lab) error {
	var errs []error
	parts := []string{"ul", "cp", "out", "ext", "os"}
	for _, n := range l.AllNodes() {
		parts = append(parts, n.Name)
	}
	for _, p := range parts {
		path := filepath.Join(ground.NetnsDir, l.Namespace(p))
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, fmt.Errorf("remove the name of a namespace: %w", err))
		}
	}
	return errors.Join(errs...)
}

// removeDir unmounts everything below a directory, and removes it.
func removeDir(dir string) error {
	points, err := ground.MountsBelow(dir)
	if err != nil {
		return err
	}
	for _, p := range slices.Backward(points) {
		if err := unix.Unmount(p, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("unmount %s: %w", p, err)
		}
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove %s: %w", dir, err)
	}
	return nil
}
