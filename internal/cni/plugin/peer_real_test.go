//go:build real

package plugin_test

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"weft.dev/weft/internal/cni"
)

// unprivileged is the uid of no account (the overflow uid, proc(5), /proc/sys/kernel/overflowuid).
const unprivileged = 65534

// TestUnprivilegedUserIsRefused executes the plugin as that user, with the directories' modes opened as by an administrator's mistake: the agent reads
// the peer's uid from the kernel. It needs root.
func TestUnprivilegedUserIsRefused(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("this test needs root")
	}
	n := newNode(t, nil)
	for dir := filepath.Dir(n.socket()); dir != "/"; dir = filepath.Dir(dir) {
		makePassable(t, dir)
	}
	for _, path := range []string{n.socket(), pluginDir} {
		if err := os.Chmod(path, 0o777); err != nil { //nolint:gosec // The mistake.
			t.Fatal(err)
		}
	}
	cmd := n.command(t.Context(), "ADD", n.conf("1.1.0"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: unprivileged, Gid: unprivileged}}
	stdout, err := cmd.Output()
	if err == nil {
		t.Error("an unprivileged user was served")
	}
	wantPrinted(t, string(stdout), cni.CodeForbidden, "not user 65534")
	if requests := n.handler.Requests(); len(requests) != 0 {
		t.Errorf("the handler got %v", requests)
	}
	if _, err := n.run(t, "ADD", n.conf("1.1.0")); err != nil {
		t.Errorf("root is not served after that: %v", err)
	}
}

// makePassable lets every user pass through a directory until the test ends.
func makePassable(t *testing.T, dir string) {
	t.Helper()
	info, err := os.Stat(dir)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm()&0o001 != 0 {
		return
	}
	if err := os.Chmod(dir, info.Mode().Perm()|0o011); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Chmod(dir, info.Mode().Perm()) })
}
