package openflow

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
)

// Fake is a switch in memory. It keeps flows and groups. It refuses what a switch refuses (a flow to a missing group, a field without the
// field it depends on), and applies nothing of a refused change. It is an engine like Engine; with Serve, an Engine connects to it as to
// a switch.
type Fake struct {
	feed feed

	mu       sync.Mutex
	entries  map[Key]Entry
	watchers map[*fakeSession]struct{}
	commits  int
	flushed  []CTFlush
}

// NewFake makes an empty switch, whose first event is Connected.
func NewFake() *Fake {
	f := &Fake{feed: newFeed(), entries: map[Key]Entry{}, watchers: map[*fakeSession]struct{}{}}
	f.feed.post(Event{Connected: true})
	return f
}

// Read returns flows without timeout, and groups.
func (f *Fake) Read(context.Context) (map[Key]Entry, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	entries := maps.Clone(f.entries)
	maps.DeleteFunc(entries, func(_ Key, e Entry) bool {
		flow, ok := e.(*Flow)
		return ok && (flow.IdleTimeout != 0 || flow.HardTimeout != 0)
	})
	return entries, nil
}

// Commit makes all of the change, or nothing.
func (f *Fake) Commit(_ context.Context, change Change) error {
	mods, err := plan(change, nil)
	if err != nil || len(mods) == 0 {
		return err
	}
	_, err = f.apply(mods, nil)
	return err
}

// Next waits for a change that Commit did not make.
func (f *Fake) Next(ctx context.Context) (Event, error) { return f.feed.next(ctx) }

// Disturb makes changes without the engine, which Next reports.
func (f *Fake) Disturb(mods ...Mod) error {
	changed, err := f.apply(mods, nil)
	if err == nil {
		f.feed.post(Event{Drift: changed})
	}
	return err
}

// Restart empties the switch, as a restart of ovs-vswitchd does, and ends the connections of Serve.
func (f *Fake) Restart() {
	f.mu.Lock()
	clear(f.entries)
	sessions := slices.Collect(maps.Keys(f.watchers))
	f.mu.Unlock()
	for _, s := range sessions {
		_ = s.nc.Close()
	}
	f.feed.post(Event{Connected: true})
}

// Commits returns the number of commits so far.
func (f *Fake) Commits() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.commits
}

// FlushCT records the connections to flush.
func (f *Fake) FlushCT(_ context.Context, what CTFlush) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.flushed = append(f.flushed, what)
	return nil
}

// Flushed returns the arguments of FlushCT, in order.
func (f *Fake) Flushed() []CTFlush {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.flushed)
}

// String prints groups, then flows by table and falling priority, as ovs-ofctl would.
func (f *Fake) String() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return Text(f.entries)
}

// Text prints entries one a line: groups, then flows by table, falling priority and match.
func Text(entries map[Key]Entry) string {
	keys := slices.SortedFunc(maps.Keys(entries), CompareKeys)
	var b strings.Builder
	for _, k := range keys {
		b.WriteString(entries[k].String())
		b.WriteByte('\n')
	}
	return b.String()
}

// CompareKeys orders groups before flows, flows by table, falling priority and match.
func CompareKeys(a, b Key) int {
	if (a.Group != 0) != (b.Group != 0) {
		if a.Group != 0 {
			return -1
		}
		return 1
	}
	if a.Group != b.Group {
		return int(int64(a.Group) - int64(b.Group))
	}
	if a.Table != b.Table {
		return int(a.Table) - int(b.Table)
	}
	if a.Priority != b.Priority {
		return int(b.Priority) - int(a.Priority)
	}
	return strings.Compare(a.Match, b.Match)
}

// apply makes the changes in their order, all or none, and returns the keys of the changed flows. It does not notify the session by,
// which made them.
func (f *Fake) apply(mods []Mod, by *fakeSession) ([]Key, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	next := maps.Clone(f.entries)
	var updates []FlowUpdate
	for _, mod := range mods {
		done, err := applyMod(next, mod)
		if err != nil {
			return nil, err
		}
		updates = append(updates, done...)
	}
	f.entries = next
	f.commits++
	keys := make([]Key, 0, len(updates))
	for _, u := range updates {
		keys = append(keys, u.Flow.Key())
	}
	for s := range f.watchers {
		if s != by && s.monitoring {
			s.report(updates)
		}
	}
	return keys, nil
}

func applyMod(entries map[Key]Entry, mod Mod) ([]FlowUpdate, error) {
	if err := mod.validate(); err != nil {
		return nil, err
	}
	key := mod.Entry.Key()
	switch e := mod.Entry.(type) {
	case *Group:
		if mod.Delete {
			delete(entries, key)
			return removeUsers(entries, e.ID), nil
		}
		entries[key] = e
		return nil, nil
	case *Flow:
		old, was := entries[key]
		if mod.Delete {
			if !was {
				return nil, nil
			}
			delete(entries, key)
			return []FlowUpdate{{Event: FlowRemoved, Flow: e}}, nil
		}
		for _, id := range usedGroups(e.Actions) {
			if _, ok := entries[Key{Group: id}]; !ok {
				return nil, &Error{Type: 2, Code: 9, Of: e.String()} // OFPBAC_BAD_OUT_GROUP
			}
		}
		entries[key] = e
		switch {
		case !was:
			return []FlowUpdate{{Event: FlowAdded, Flow: e}}, nil
		case !e.Equal(old):
			return []FlowUpdate{{Event: FlowModified, Flow: e}}, nil
		}
		return nil, nil
	default:
		return nil, fmt.Errorf("not a switch entry: %T", mod.Entry)
	}
}

// removeUsers deletes the flows that use a group, as a switch does with the group.
func removeUsers(entries map[Key]Entry, group uint32) []FlowUpdate {
	var updates []FlowUpdate
	for key, e := range entries {
		if flow, ok := e.(*Flow); ok && slices.Contains(usedGroups(flow.Actions), group) {
			delete(entries, key)
			updates = append(updates, FlowUpdate{Event: FlowRemoved, Flow: flow})
		}
	}
	return updates
}

func usedGroups(actions Actions) []uint32 {
	var ids []uint32
	for _, a := range actions {
		switch a := a.(type) {
		case number:
			if a.kind == actGroup {
				ids = append(ids, a.value)
			}
		case clone:
			ids = append(ids, usedGroups(a.actions)...)
		case writeActions:
			ids = append(ids, usedGroups(a.actions)...)
		}
	}
	return ids
}
