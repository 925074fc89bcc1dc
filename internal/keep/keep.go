// Package keep keeps things of the node that no engine holds as they are to be: files, sockets, settings of the kernel. What another
// program changes or removes is put back when an event says so, and within Period of it in any case.
package keep

import (
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

// Period is how often everything is looked at although no event came: of some changes none does, such as of a folder that is mounted over.
const Period = 5 * time.Second

// rest is how long nothing is looked at after something was put back: two programs that disagree about a file take turns of that length.
const rest = time.Second

// Thing is kept as it is to be.
type Thing struct {
	// Name is what it is called in State and Told.
	Name string
	// Path is the file whose folder is watched for changes. Empty: nothing is.
	Path string
	// Restore compares, puts back what differs, and says what that was; "" if nothing did.
	Restore func() (put string, err error)
}

// Keeper keeps things. The fields are set before Run.
type Keeper struct {
	// Things are those that are kept.
	Things []Thing
	// Told is called with what was put back, or with why it could not be; with the same failure only once. Nil: nothing is.
	Told func(thing Thing, put string, err error)

	mu       sync.Mutex
	failures map[string]error
}

// State returns what is not as it is to be, nil if everything is.
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

// Run keeps the things until ctx ends. wake has it look at once; without inotify only that and Period do.
func (k *Keeper) Run(ctx context.Context, wake <-chan struct{}) error {
	var events <-chan fsnotify.Event
	var overflows <-chan error
	watcher, err := fsnotify.NewWatcher()
	if err == nil {
		defer watcher.Close() //nolint:errcheck // nothing was written
		events, overflows = watcher.Events, watcher.Errors
	}
	period := time.NewTicker(Period)
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

// concerns reports whether an event may be of a thing: of its file, or of a folder above.
func (k *Keeper) concerns(path string) bool {
	return slices.ContainsFunc(k.Things, func(t Thing) bool {
		within, err := filepath.Rel(path, t.Path)
		return err == nil && (within == "." || filepath.IsLocal(within))
	})
}

// watch watches the things' folders, or what there is above them. A folder that was removed and made again is another one.
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
				_ = watcher.Add(dir) // without it, Period bounds how late a change is found
				break
			}
		}
	}
}

// look looks at everything, and reports whether anything was put back or could not be.
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
		if (put != "" || err != nil) && !again && k.Told != nil {
			k.Told(thing, put, err)
		}
		busy = busy || put != "" || err != nil
	}
	return busy
}
