package keep

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"
)

// kept returns a Keeper of a file with the content "right".
func kept(t *testing.T, path string) (*Keeper, *atomic.Int32) {
	t.Helper()
	var reported atomic.Int32
	k := &Keeper{
		Things: []Thing{{Name: "file", Path: path, Restore: func() (string, error) {
			if have, err := os.ReadFile(path); err == nil && string(have) == "right" {
				return "", nil
			}
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				return "", err
			}
			return "its content", os.WriteFile(path, []byte("right"), 0o600)
		}}},
		Report: func(Thing, string, error) { reported.Add(1) },
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- k.Run(ctx, nil) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return k, &reported
}

func until(t *testing.T, what string, true func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*Period)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !true() {
		select {
		case <-ctx.Done():
			t.Fatalf("%s: not in time", what)
		case <-tick.C:
		}
	}
}

// A file that is changed or removed is restored and reported, each time.
func TestKeeps(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	path := filepath.Join(dir, "file")
	k, reported := kept(t, path)
	right := func() bool {
		have, err := os.ReadFile(path)
		return err == nil && string(have) == "right"
	}
	until(t, "made", right)
	for i, damage := range []func() error{
		func() error { return os.Remove(path) },
		func() error { return os.WriteFile(path, []byte("wrong"), 0o600) },
		func() error { return os.RemoveAll(filepath.Dir(dir)) },
		func() error { return os.Rename(path, path+".aside") },
	} {
		before := reported.Load()
		if err := damage(); err != nil {
			t.Fatal(err)
		}
		until(t, "put back", func() bool { return right() && reported.Load() > before })
		if k.State() != nil {
			t.Errorf("damage %d: %v", i, k.State())
		}
	}
}

// A thing that cannot be restored is a failure until it can be, and is reported once.
func TestKeepsTrying(t *testing.T) {
	var failing atomic.Bool
	failing.Store(true)
	var reported atomic.Int32
	wake := make(chan struct{})
	k := &Keeper{
		Things: []Thing{{Name: "setting", Restore: func() (string, error) {
			if failing.Load() {
				return "", errors.New("read-only")
			}
			return "", nil
		}}},
		Report: func(Thing, string, error) { reported.Add(1) },
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- k.Run(ctx, wake) }()
	until(t, "failing", func() bool { return k.State() != nil })
	wake <- struct{}{}
	failing.Store(false)
	wake <- struct{}{}
	until(t, "well", func() bool { return k.State() == nil })
	cancel()
	if err := <-done; err != nil || reported.Load() != 1 {
		t.Errorf("%v, reported %d times", err, reported.Load())
	}
}
