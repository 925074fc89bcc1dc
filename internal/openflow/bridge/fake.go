package bridge

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"weft.dev/weft/internal/openflow"
)

// Fake is a switch in memory. It keeps flows and groups. It refuses what a switch refuses (a flow to a missing group, a field without the
// field it depends on), and applies nothing of a refused change. It is an engine like Engine; with Serve, an Engine connects to it as to
// a switch.
type Fake struct {
	feed feed

	mu       sync.Mutex
	entries  map[openflow.Key]openflow.Entry
	watchers map[*fakeSession]struct{}
	commits  int
}

// NewFake makes an empty switch, whose first event is Connected.
func NewFake() *Fake {
	f := &Fake{feed: newFeed(), entries: map[openflow.Key]openflow.Entry{}, watchers: map[*fakeSession]struct{}{}}
	f.feed.post(Event{Connected: true})
	return f
}

// Read returns flows without timeout, and groups.
func (f *Fake) Read(context.Context) (map[openflow.Key]openflow.Entry, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	entries := maps.Clone(f.entries)
	maps.DeleteFunc(entries, func(_ openflow.Key, e openflow.Entry) bool {
		flow, ok := e.(*openflow.Flow)
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
func (f *Fake) Disturb(mods ...openflow.Mod) error {
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

// FlushCT does nothing: a Fake tracks no connections.
func (f *Fake) FlushCT(context.Context, openflow.CTFlush) error { return nil }

// String prints groups, then flows by table and falling priority, as ovs-ofctl would.
func (f *Fake) String() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return openflow.Text(f.entries)
}

// apply makes the changes in their order, all or none, and returns the keys of the changed flows. It does not notify the session by,
// which made them.
func (f *Fake) apply(mods []openflow.Mod, by *fakeSession) ([]openflow.Key, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	next := maps.Clone(f.entries)
	var updates []openflow.FlowUpdate
	for _, mod := range mods {
		done, err := applyMod(next, mod)
		if err != nil {
			return nil, err
		}
		updates = append(updates, done...)
	}
	f.entries = next
	f.commits++
	keys := make([]openflow.Key, 0, len(updates))
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

func applyMod(entries map[openflow.Key]openflow.Entry, mod openflow.Mod) ([]openflow.FlowUpdate, error) {
	if err := mod.Validate(); err != nil {
		return nil, err
	}
	key := mod.Entry.Key()
	switch e := mod.Entry.(type) {
	case *openflow.Group:
		if mod.Delete {
			delete(entries, key)
			return removeUsers(entries, e.ID), nil
		}
		entries[key] = e
		return nil, nil
	case *openflow.Flow:
		old, was := entries[key]
		if mod.Delete {
			if !was {
				return nil, nil
			}
			delete(entries, key)
			return []openflow.FlowUpdate{{Event: openflow.FlowRemoved, Flow: e}}, nil
		}
		for _, id := range e.Actions.Groups() {
			if _, ok := entries[openflow.Key{Group: id}]; !ok {
				return nil, &openflow.Error{Type: 2, Code: 9, Of: e.String()} // OFPBAC_BAD_OUT_GROUP
			}
		}
		entries[key] = e
		switch {
		case !was:
			return []openflow.FlowUpdate{{Event: openflow.FlowAdded, Flow: e}}, nil
		case !e.Equal(old):
			return []openflow.FlowUpdate{{Event: openflow.FlowModified, Flow: e}}, nil
		}
		return nil, nil
	default:
		return nil, fmt.Errorf("not a switch entry: %T", mod.Entry)
	}
}

// removeUsers deletes the flows that use a group, as a switch does with the group.
func removeUsers(entries map[openflow.Key]openflow.Entry, group uint32) []openflow.FlowUpdate {
	var updates []openflow.FlowUpdate
	for key, e := range entries {
		if flow, ok := e.(*openflow.Flow); ok && slices.Contains(flow.Actions.Groups(), group) {
			delete(entries, key)
			updates = append(updates, openflow.FlowUpdate{Event: openflow.FlowRemoved, Flow: flow})
		}
	}
	return updates
}
