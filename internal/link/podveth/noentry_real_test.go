//go:build real

package podveth

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/link/nstest"
	"weft.dev/weft/internal/link/podlink"
)

// withoutOverride runs work on a thread without CAP_DAC_OVERRIDE, so that file modes apply to it.
func withoutOverride(t *testing.T, work func()) {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread, which lost its capabilities, ends
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var data [2]unix.CapUserData
		err := unix.Capget(&header, &data[0])
		data[0].Effective &^= 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_DAC_READ_SEARCH
		if err = errors.Join(err, unix.Capset(&header, &data[0])); err == nil {
			work()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// A pod's interface in a namespace that cannot be opened counts as removed only if it is removed: the veth peer of its port shows that.
// Then the port of an attachment that is being removed is reused; otherwise it is removed with the interface on it.
func TestUnplugRealNoEntry(t *testing.T) {
	pods, _ := newPods(t)
	ctx := context.Background()
	ports, pod := nstest.New(t), nstest.New(t)
	pair := prepluggedPair(pod, ports)
	if err := pods.CreatePreplugged(ctx, ports, prepluggedPairs(1)...); err != nil {
		t.Fatal(err)
	}
	if _, err := pods.Create(ctx, pair); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Dir(pod), 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Chmod(filepath.Dir(pod), 0o700) })
	withoutOverride(t, func() {
		if err := pods.Unplug(ctx, pair, func() {}); !errors.Is(err, podlink.ErrOccupied) || !errors.Is(err, unix.EACCES) {
			t.Errorf("Unplug of an interface out of reach: %v", err)
		}
	})
	if err := pods.Unplug(ctx, pair, func() {}); err != nil {
		t.Fatal(err)
	}
	withoutOverride(t, func() {
		if err := pods.Unplug(ctx, pair, func() {}); err != nil {
			t.Errorf("Unplug of an interface that is gone: %v", err)
		}
	})
}
