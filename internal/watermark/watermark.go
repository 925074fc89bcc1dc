// Package watermark computes the resourceVersion observed for one kind of object: the version up to which all changes of these objects are
// in effect. Each object is then in effect as it was at that version, or as it was later. Versions are the API server's resourceVersions,
// as numbers.
//
// A watch reports changes in the order of their versions. Without lists, the highest version reported would be enough. But after a gap an
// informer lists everything, and reports what changed in the gap in any order. Therefore a Mark is notified of an object twice: when it
// arrives from the API server (in an informer's transform, which sees all objects of a list before the first of them is reported), and when
// it is reported to the handler that acts on it. An object that has arrived but is not reported yet holds the mark down.
package watermark

import (
	"sync"
	"time"
)

// lost is how long an object that arrived may take until it is reported. After that time it never will be: when a streaming list breaks
// off, the informer lists again, and an object that was deleted meanwhile is not in the new list.
const lost = time.Minute

// Mark follows the objects of one kind. Its methods may be called concurrently, and on a nil Mark, which follows nothing.
type Mark struct {
	now     func() time.Time
	changed func()

	mu sync.Mutex
	// active says that handlers are notified. known says that everything in the first list is in effect.
	active, known bool
	// highest is the highest version reported. settled is what Version returned last; lower versions do not matter any more.
	highest, settled uint64
	// objects are those with a change that is not in effect yet, or that may still get one.
	objects map[string]*object
	// why is the error of the last step; nil if the step succeeded.
	why error
}

// object is the state of one object. Version zero means none.
type object struct {
	// lowest is the first version that the object may have had since it was last reported, last the version that arrived last, and since the
	// time of that arrival.
	lowest, last uint64
	since        time.Time
	// observed is the highest version reported.
	observed uint64
	// owed is the lowest version that was reported and that no step has taken up yet. taken is the lowest version that a step has taken up and
	// that has not succeeded yet.
	owed, taken uint64
}

// New returns a Mark. It calls changed when the results of Version or Why may have changed; changed must not block. now returns the current
// time.
func New(now func() time.Time, changed func()) *Mark {
	return &Mark{now: now, changed: changed, objects: map[string]*object{}}
}

// Begin starts to follow, from an empty state: all objects are reported again.
func (m *Mark) Begin() { m.reset(true) }

// End stops following and clears the state. Version then returns no version.
func (m *Mark) End() { m.reset(false) }

func (m *Mark) reset(active bool) {
	if m == nil {
		return
	}
	m.mu.Lock()
	m.active, m.known, m.highest, m.settled, m.objects, m.why = active, false, 0, 0, map[string]*object{}, nil
	m.mu.Unlock()
	m.changed()
}

// Came notes that an object arrived.
func (m *Mark) Came(key string, version uint64) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	o := m.objects[key]
	if !m.active || version <= m.settled || o != nil && version <= max(o.observed, o.last) {
		return // versions in effect or reported already are not reported again
	}
	if o == nil {
		o = &object{}
		m.objects[key] = o
	}
	if o.lowest == 0 {
		o.lowest = min(version, m.highest+1) // in a gap it may have had versions that the watch did not report
	}
	o.last, o.since = version, m.now()
}

// Observed notes that an object was reported to the handler. If concerns is false, the handler has nothing to do. Observed is called after the
// handler has queued its work: a step that takes up the work either takes up this version too, or leaves it to the next step.
func (m *Mark) Observed(key string, version uint64, concerns bool) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.active {
		return
	}
	o := m.objects[key]
	if o == nil {
		o = &object{}
		m.objects[key] = o
	}
	first := version
	if o.lowest != 0 {
		first = min(o.lowest, version)
	}
	if o.last <= version {
		o.lowest, o.last = 0, 0
	} else {
		o.lowest = version + 1
	}
	o.observed = max(o.observed, version)
	if concerns && o.owed == 0 {
		o.owed = first
	}
	m.highest = max(m.highest, version)
	if !concerns {
		defer m.changed()
	}
}

// Gone notes that an object was reported as deleted after a gap, when the version of its deletion is not known.
func (m *Mark) Gone(key string) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if o := m.objects[key]; o != nil {
		o.lowest, o.last = 0, 0 // it arrived, and was deleted without a report of its own
	}
}

// Take begins a step, which takes up everything reported until now. It is called before the step reads its work.
func (m *Mark) Take() {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, o := range m.objects {
		if o.owed != 0 && (o.taken == 0 || o.owed < o.taken) {
			o.taken = o.owed
		}
		o.owed = 0
	}
}

// Done ends a step. Without an error, everything that was ever taken up is in effect. With an error, it is not, for that reason, and a
// later step takes it up as well.
func (m *Mark) Done(err error) {
	if m == nil {
		return
	}
	m.mu.Lock()
	if m.why = err; err == nil {
		m.known = m.active
		for _, o := range m.objects {
			o.taken = 0
		}
		m.sweep()
	}
	m.mu.Unlock()
	m.changed()
}

// Version returns the version up to which all changes are in effect. If ok is false, no version is known.
func (m *Mark) Version() (version uint64, ok bool) {
	if m == nil {
		return 0, false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.known {
		return 0, false
	}
	return m.sweep(), true
}

// sweep returns the version up to which all changes are in effect, and deletes objects that hold nothing down. The caller holds mu.
func (m *Mark) sweep() uint64 {
	version := m.highest
	before := m.now().Add(-lost)
	for _, o := range m.objects {
		if o.lowest != 0 && o.since.Before(before) {
			o.lowest, o.last = 0, 0
		}
		for _, owed := range []uint64{o.lowest, o.owed, o.taken} {
			if owed != 0 {
				version = min(version, owed-1)
			}
		}
	}
	m.settled = max(m.settled, version)
	for key, o := range m.objects {
		if o.lowest == 0 && o.owed == 0 && o.taken == 0 && o.observed <= m.settled {
			delete(m.objects, key)
		}
	}
	if len(m.objects) == 0 {
		m.objects = map[string]*object{} // a map does not shrink, and the first list was long
	}
	return version
}

// Why returns the error of the last step; nil if it succeeded.
func (m *Mark) Why() error {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.why
}
