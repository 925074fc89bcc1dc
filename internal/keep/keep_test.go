package keep

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"weft.dev/weft/internal/testwait"
)

// kept returns a Keeper of a file with the content "right". Only events make it compare: its period does not end during the test.
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
		Period: 24 * time.Hour,
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

// A file that is changed or removed is restored by the event, and reported, each time.
func TestKeeps(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	path := filepath.Join(dir, "file")
	k, reported := kept(t, path)
	right := func() bool {
		have, err := os.ReadFile(path)
		return err == nil && string(have) == "right"
	}
	testwait.Until(t, "made", right)
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
		testwait.Until(t, fmt.Sprintf("put back after damage %d", i), func() bool { return right() && reported.Load() > before })
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
	testwait.Until(t, "failing", func() bool { return k.State() != nil })
	wake <- struct{}{}
	failing.Store(false)
	wake <- struct{}{}
	testwait.Until(t, "well", func() bool { return k.State() == nil })
	cancel()
	if err := <-done; err != nil || reported.Load() != 1 {
		t.Errorf("%v, reported %d times", err, reported.Load())
	}
}

// A change without an event is restored when the period ends, also while another program changes it again and again.
func TestKeepsWithoutEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var wrong atomic.Bool
		restored := make(chan time.Time, 1)
		k := &Keeper{
			Things: []Thing{{Name: "setting", Restore: func() (string, error) {
				if !wrong.Swap(false) {
					return "", nil
				}
				return "its value", nil
			}}},
			Report: func(Thing, string, error) { restored <- time.Now() },
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- k.Run(ctx, nil) }()
		synctest.Wait() // it was compared at the start
		for i := range 4 {
			changed := time.Now()
			wrong.Store(true)
			if took := (<-restored).Sub(changed); took <= 0 || took > DefaultPeriod {
				t.Errorf("change %d: restored after %s, want at most %s", i, took, DefaultPeriod)
			}
			time.Sleep(time.Duration(i) * time.Second / 2) // the next change comes at another time within the period
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
