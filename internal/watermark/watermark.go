// Package watermark says how far the objects of one kind, of which a watch of the API server tells, are in effect: the version up
// to which each object, as it was then or later, has been acted upon. Versions are the API server's resourceVersions as numbers.
//
// A watch tells of changes in the order of their versions, so that the highest version that was told would do, if it were not for
// lists: after a gap an informer lists everything, and tells of what changed meanwhile in any order. So a Mark hears of objects
// twice: when they come in from the API server (an informer's transform, which sees all objects of a list before the first of
// them is told), and when they are told to whoever acts on them. What came in and is not told yet holds the mark down.
package watermark

import (
	"sync"
	"time"
)

// lost is how long what came in may take until it is told. What takes longer was never told: a list that streams in, and breaks
// off, is begun anew, and an object that went meanwhile is not in it.
const lost = time.Minute

// Mark follows the objects of one kind. Its methods may be called concurrently, and on nil, which follows nothing.
type Mark struct {
	now     func() time.Time
	changed func()

	mu sync.Mutex
	// active says that somebody is told; known that what was told the first time, all that there is, is in effect.
	active, known bool
	// highest is the highest version that was told, settled that which Version said last: nothing lower is of interest.
	highest, settled uint64
	// objects are those of which something is owed, or of which it has to be known that nothing is.
	objects map[string]*object
	// why says why the last step failed, nil if it did not.
	why error
}

// object is what is known of one object. A zero version says that there is none.
type object struct {
	// lowest is the first version that it may have had since it was told of, last the last that came in; since is when that was.
	lowest, last uint64
	since        time.Time
	// told is the highest version that was told.
	told uint64
	// owed is the lowest version that was told and that no step has taken up yet, taken the lowest that one has taken up which
	// did not end well yet.
	owed, taken uint64
}

// New returns a Mark. changed is called, and must not wait, when Version or Why may say something else; now tells the time.
func New(now func() time.Time, changed func()) *Mark {
	return &Mark{now: now, changed: changed, objects: map[string]*object{}}
}

// Begin has the mark follow from now on, from nothing: all objects are told anew.
func (m *Mark) Begin() { m.reset(true) }

// End has the mark say nothing, and forget everything.
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

// Came notes that an object came in.
func (m *Mark) Came(key string, version uint64) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	o := m.objects[key]
	if !m.active || version <= m.settled || o != nil && version <= max(o.told, o.last) {
		return // of what is in effect, or was told already, nobody is told again
	}
	if o == nil {
		o = &object{}
		m.objects[key] = o
	}
	if o.lowest == 0 {
		o.lowest = min(version, m.highest+1) // after a gap it may have had others before, that nobody saw
	}
	o.last, o.since = version, m.now()
}

// Told notes that whoever acts on objects was told of one; if it concerns nobody, nothing is to be done. It is called after what
// is to be done was noted: a step that takes that up also takes this up, or leaves it to the next.
func (m *Mark) Told(key string, version uint64, concerns bool) {
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
	o.told = max(o.told, version)
	if concerns && o.owed == 0 {
		o.owed = first
	}
	m.highest = max(m.highest, version)
	if !concerns {
		defer m.changed()
	}
}

// Gone notes that whoever acts on objects was told that one is there no more, of which it is not known since when: after a gap.
func (m *Mark) Gone(key string) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if o := m.objects[key]; o != nil {
		o.lowest, o.last = 0, 0 // it came in, and went unseen
	}
}

// Take begins a step: what was told until now is taken up by it. It is called before what is to be done is taken.
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

// Done ends a step. Without an error all that was ever taken up is in effect; else it stays so that it is not, for that reason,
// and a later step takes it up as well.
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

// Version returns the version up to which objects are in effect. Not ok: it is not known of any.
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

// sweep returns the version up to which objects are in effect, and forgets those of which nothing is owed. The caller holds mu.
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
		if o.lowest == 0 && o.owed == 0 && o.taken == 0 && o.told <= m.settled {
			delete(m.objects, key)
		}
	}
	if len(m.objects) == 0 {
		m.objects = map[string]*object{} // a map does not shrink, and the first list was long
	}
	return version
}

// Why returns why the last step failed, nil if it did not.
func (m *Mark) Why() error {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.why
}
