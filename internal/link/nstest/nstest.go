//go:build real

// Package nstest gives tests their own network namespaces. It needs root.
package nstest

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// New creates a network namespace and returns its path. The test's cleanup removes it.
func New(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "netns")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with its namespace
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			err = unix.Mount("/proc/thread-self/ns/net", path, "", unix.MS_BIND, "")
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatalf("making a network namespace: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(path, unix.MNT_DETACH); err != nil && !os.IsNotExist(err) && err != unix.EINVAL {
			t.Errorf("removing network namespace %s: %v", path, err)
		}
	})
	return path
}

// Do runs work on a thread inside the namespace and waits for it. Work must not call t.Fatal.
func Do(t testing.TB, path string, work func() error) {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		file, err := os.Open(path)
		if err != nil {
			done <- err
			return
		}
		defer file.Close()
		if err = unix.Setns(int(file.Fd()), unix.CLONE_NEWNET); err == nil {
			err = work()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatalf("in %s: %v", path, err)
	}
}
