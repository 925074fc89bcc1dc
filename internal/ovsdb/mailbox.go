package ovsdb

import (
	"slices"
	"sync"
)

// mailbox holds events until the caller receives them. Waiting events of one kind are merged. So the mailbox holds at most one event of
// each kind, and post never blocks.
type mailbox struct {
	mu      sync.Mutex
	pending []Event
	wake    chan struct{}
	out     chan Event
}

func newMailbox() *mailbox {
	return &mailbox{wake: make(chan struct{}, 1), out: make(chan Event)}
}

// post adds the event.
func (m *mailbox) post(event Event) {
	m.mu.Lock()
	defer m.mu.Unlock()
	i := slices.IndexFunc(m.pending, func(e Event) bool { return e.Kind == event.Kind })
	if i < 0 {
		m.pending = append(m.pending, event)
	} else {
		keys := slices.Concat(m.pending[i].Keys, event.Keys)
		slices.SortFunc(keys, compareKeys)
		m.pending[i].Keys = slices.Compact(keys)
	}
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// run delivers events in the order of their first posting. When stop is closed, it closes the channel.
func (m *mailbox) run(stop <-chan struct{}) {
	defer close(m.out)
	for {
		select {
		case <-stop:
			return
		case <-m.wake:
		}
		for {
			event, ok := m.take()
			if !ok {
				break
			}
			select {
			case <-stop:
				return
			case m.out <- event:
			}
		}
	}
}

func (m *mailbox) take() (Event, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.pending) == 0 {
		return Event{}, false
	}
	event := m.pending[0]
	m.pending = slices.Delete(m.pending, 0, 1)
	return event, true
}
