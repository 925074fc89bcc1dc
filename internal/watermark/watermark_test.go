package watermark_test

import (
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"weft.dev/weft/internal/watermark"
)

// notice is an informer's report about an object. gone: the object was deleted in a gap, and version is 0.
type notice struct {
	key      string
	version  uint64
	gone     bool
	concerns bool
}

// world is an API server, an informer that watches and lists, and a handler that acts in steps on what the informer reports.
type world struct {
	t    *rapid.T
	mark *watermark.Mark
	now  time.Time

	version uint64
	// server has all versions of each existing object since its creation, in order. counts has, for each version, the last version at which a
	// change concerned the handler.
	server map[string][]uint64
	counts map[string]map[uint64]uint64
	// watching says that the watch is open. store is the informer's cache, and queue what it has still to report.
	watching bool
	store    map[string]uint64
	queue    []notice
	// dirty are the objects to act on, under those that the current step acts on, with the version that it read, and effect what is in effect.
	dirty, effect map[string]uint64
	under         map[string]uint64
	stepping      bool
	// broken says that a list broke off.
	broken bool
}

func newWorld(t *rapid.T) *world {
	w := &world{
		t: t, now: time.Unix(1000, 0), server: map[string][]uint64{}, counts: map[string]map[uint64]uint64{}, store: map[string]uint64{},
		dirty: map[string]uint64{}, effect: map[string]uint64{}, under: map[string]uint64{},
	}
	w.mark = watermark.New(func() time.Time { return w.now }, func() {})
	w.mark.Begin()
	return w
}

func (w *world) key() string {
	return rapid.SampledFrom([]string{"a", "b", "c", "d", "e"}).Draw(w.t, "object")
}

func (w *world) change() {
	key, concerns := w.key(), rapid.Bool().Draw(w.t, "concerns")
	w.version++
	if len(w.server[key]) == 0 {
		concerns, w.counts[key] = true, map[uint64]uint64{}
	}
	before := uint64(0)
	if have := w.server[key]; len(have) > 0 {
		before = w.counts[key][have[len(have)-1]]
	}
	if concerns {
		before = w.version
	}
	w.server[key], w.counts[key][w.version] = append(w.server[key], w.version), before
	if w.watching {
		w.mark.Came(key, w.version)
		w.queue, w.store[key] = append(w.queue, notice{key: key, version: w.version, concerns: concerns}), w.version
	}
}

func (w *world) remove() {
	key := w.key()
	if len(w.server[key]) == 0 {
		return
	}
	w.version++
	delete(w.server, key)
	if w.watching {
		w.mark.Came(key, w.version)
		w.queue = append(w.queue, notice{key: key, version: w.version, concerns: true})
		delete(w.store, key)
	}
}

// list lists everything after a gap, in any order, or breaks off in the middle.
func (w *world) list(whole bool) {
	keys := rapid.Permutation(slices.Sorted(maps.Keys(w.server))).Draw(w.t, "order")
	if !whole {
		keys, w.broken = keys[:len(keys)/2], true
	}
	last := func(key string) uint64 { return w.server[key][len(w.server[key])-1] }
	for _, key := range keys {
		w.mark.Came(key, last(key))
	}
	if w.watching = whole; !whole {
		return
	}
	for key := range w.store {
		if len(w.server[key]) == 0 {
			w.queue = append(w.queue, notice{key: key, gone: true})
			delete(w.store, key)
		}
	}
	for _, key := range keys {
		if w.store[key] == last(key) {
			continue // an unchanged object is not reported
		}
		// A relevant field may have changed in the gap. A handler detects this by comparison.
		_, had := w.store[key]
		concerns := !had || w.counts[key][last(key)] > w.store[key]
		w.store[key] = last(key)
		w.queue = append(w.queue, notice{key: key, version: last(key), concerns: concerns})
	}
}

func (w *world) observe() {
	if len(w.queue) == 0 {
		return
	}
	n := w.queue[0]
	w.queue = w.queue[1:]
	if n.gone || n.concerns {
		w.dirty[n.key] = 0
	}
	if n.gone {
		w.mark.Gone(n.key)
	} else {
		w.mark.Observed(n.key, n.version, n.concerns)
	}
}

func (w *world) begin() {
	if w.stepping {
		return
	}
	w.stepping = true
	w.mark.Take()
	for key := range w.dirty {
		w.under[key] = w.store[key]
	}
	w.dirty = map[string]uint64{}
}

var errAway = errors.New("the engine is away")

func (w *world) end(well bool) {
	if !w.stepping {
		return
	}
	w.stepping = false
	if !well {
		w.mark.Done(errAway)
		return
	}
	maps.Copy(w.effect, w.under)
	w.under = map[string]uint64{}
	w.mark.Done(nil)
}

// check fails if the mark claims for any object that a version is in effect that is not.
func (w *world) check() {
	version, known := w.mark.Version()
	if !known {
		return
	}
	for key, versions := range w.server {
		for _, v := range versions {
			if v <= version && w.effect[key] < w.counts[key][v] {
				w.t.Fatalf("%s in version %d is said to be in effect (%d), and what is in effect is of %d", key, v, version, w.effect[key])
			}
		}
	}
}

// In any order of events, the mark never claims that a version is in effect that is not. Once everything is reported and done, it claims
// all versions.
func TestMarkNeverLies(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		w.list(true) // everything in the first list is reported and done before the mark claims anything
		for range rapid.IntRange(0, 80).Draw(t, "steps") {
			switch rapid.IntRange(0, 10).Draw(t, "what") {
			case 0, 1, 2:
				w.change()
			case 3:
				w.remove()
			case 4:
				w.watching = false
			case 5:
				if !w.watching {
					w.list(rapid.IntRange(0, 3).Draw(t, "whole") > 0)
				}
			case 6, 7:
				w.observe()
			case 8:
				w.begin()
			default:
				w.end(rapid.IntRange(0, 3).Draw(t, "well") > 0)
			}
			w.check()
		}
		if !w.watching {
			w.list(true)
		}
		for len(w.queue) > 0 {
			w.observe()
			w.check()
		}
		w.end(false)
		w.begin()
		w.end(true)
		w.check()
		if w.broken {
			w.now = w.now.Add(2 * time.Minute) // the mark drops what such a list delivered
		}
		version, known := w.mark.Version()
		for key, versions := range w.server {
			if last := versions[len(versions)-1]; !known || version < last {
				t.Fatalf("%s in version %d is in effect, and only %d is said to be (%v)", key, last, version, known)
			}
		}
	})
}

// A version reported during a step is not in effect when that step ends. The error of a failed step remains until a step succeeds.
func TestMarkWaitsForItsOwnStep(t *testing.T) {
	changes := 0
	mark := watermark.New(time.Now, func() { changes++ })
	want := func(what string, version uint64, known bool) {
		t.Helper()
		if got, is := mark.Version(); got != version || is != known {
			t.Errorf("%s: %d, %v; want %d, %v", what, got, is, version, known)
		}
	}
	mark.Observed("early", 5, true)
	mark.Take()
	mark.Done(nil)
	want("no follower", 0, false)
	mark.Begin()
	mark.Observed("a", 10, true)
	want("nothing was done", 0, false)
	mark.Take()
	mark.Observed("b", 12, true)
	mark.Done(nil)
	want("b was reported after the step began", 11, true)
	mark.Take()
	mark.Done(errAway)
	want("the step failed", 11, true)
	if mark.Why() == nil {
		t.Error("no reason is given")
	}
	mark.Observed("c", 20, false)
	want("an irrelevant change does not overtake pending ones", 11, true)
	before := changes
	mark.Take()
	mark.Done(nil)
	want("all is done", 20, true)
	if mark.Why() != nil || changes == before {
		t.Errorf("%v, %d changes reported", mark.Why(), changes-before)
	}
	mark.Observed("d", 21, false)
	want("an irrelevant change is in effect", 21, true)
	mark.End()
	want("no follower any more", 0, false)
	var none *watermark.Mark
	none.Begin()
	none.Observed("a", 1, true)
	if _, known := none.Version(); known || none.Why() != nil {
		t.Error("a mark that is none says something")
	}
}
