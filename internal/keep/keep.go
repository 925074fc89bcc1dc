// Package keep restores state of the node that no engine manages: files, sockets and kernel settings. If another program changes or removes
// one of them, it is restored after an event, and within the keeper's period in any case.
package keep

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
)

// DefaultPeriod is the interval at which everything is compared without an event. Some changes cause no event, such as a mount over a folder.
const DefaultPeriod = 5 * time.Second

// rest is the pause after something was restored. If two programs disagree about a file, each of its states lasts that long.
const rest = time.Second

// Thing is something to restore.
type Thing struct {
	// Name is its name in State and Report.
	Name string
	// Path is a file; its folder is watched for changes. Empty: no folder is watched.
	Path string
	// Restore compares the actual state with the wanted one, and restores it. put describes what was restored; "" if nothing was.
	Restore func() (put string, err error)
}

// Keeper restores things. Its fields are set before Run.
type Keeper struct {
	// Things are restored by the keeper.
	Things []Thing
	// Report is called with what was restored, or with the error; the same error is not repeated. Nil: not called.
	Report func(thing Thing, put string, err error)
	// Period is the interval at which everything is compared without an event. Zero: DefaultPeriod.
	Period time.Duration

	mu       sync.Mutex
	failures map[string]error
}

// State returns the current failures; nil if everything is as wanted.
func (k *Keeper) State() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	var errs []error
	for _, thing := range k.Things {
		if err := k.failures[thing.Name]; err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", thing.Name, err))
		}
	}
	return errors.Join(errs...)
}

// Run keeps restoring until ctx ends. A value from wake starts a comparison at once. Without inotify, only wake and Period do.
func (k *Keeper) Run(ctx context.Context, wake <-chan struct{}) error {
	var events <-chan fsnotify.Event
	var overflows <-chan error
	watcher := k.newWatcher()
	if watcher != nil {
		defer watcher.Close() //nolint:errcheck // nothing was written
		events, overflows = watcher.Events, watcher.Errors
	}
	period := time.NewTicker(cmp.Or(k.Period, DefaultPeriod))
	defer period.Stop()
	var resting <-chan time.Time
	due := true
	for {
		if due && resting == nil {
			k.watch(watcher)
			if due = false; k.look() {
				resting = time.After(rest)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-period.C:
			due = true
		case <-wake:
			due = true
		case event := <-events:
			due = due || k.concerns(event.Name)
		case err := <-overflows:
			due = due || err != nil
		case <-resting:
			resting = nil
		}
	}
}

// newWatcher returns a watcher; nil if there is no inotify, or nothing to watch.
func (k *Keeper) newWatcher() *fsnotify.Watcher {
	if !slices.ContainsFunc(k.Things, func(t Thing) bool { return t.Path != "" }) {
		return nil
	}
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return nil
	}
	return watcher
}

// concerns reports whether an event may be about a thing: about its file, or about a folder above it.
func (k *Keeper) concerns(path string) bool {
	return slices.ContainsFunc(k.Things, func(t Thing) bool {
		within, err := filepath.Rel(path, t.Path)
		return err == nil && (within == "." || filepath.IsLocal(within))
	})
}

// watch watches the folder of each thing, or the nearest existing folder above. A folder that was removed and created again needs a new
// watch.
func (k *Keeper) watch(watcher *fsnotify.Watcher) {
	if watcher == nil {
		return
	}
	for _, thing := range k.Things {
		if thing.Path == "" {
			continue
		}
		for dir := filepath.Dir(thing.Path); ; dir = filepath.Dir(dir) {
			if _, err := os.Stat(dir); err == nil {
				_ = watcher.Add(dir) // if it fails, Period bounds the delay
				break
			}
		}
	}
}

// look compares everything, and reports whether anything was restored or could not be.
func (k *Keeper) look() (busy bool) {
	for _, thing := range k.Things {
		put, err := thing.Restore()
		k.mu.Lock()
		before := k.failures[thing.Name]
		if k.failures == nil {
			k.failures = map[string]error{}
		}
		k.failures[thing.Name] = err
		k.mu.Unlock()
		again := err != nil && before != nil && err.Error() == before.Error()
		if (put != "" || err != nil) && !again && k.Report != nil {
			k.Report(thing, put, err)
		}
		busy = busy || put != "" || err != nil
	}
	return busy
}
