package agent

import "sync/atomic"

// waiting is what the agent waits for while it serves no network.
type waiting struct{ what atomic.Pointer[string] }

func newWaiting() *waiting {
	w := &waiting{}
	w.set("the agent is starting")
	return w
}

func (w *waiting) set(what string) { w.what.Store(&what) }

func (w *waiting) get() string { return *w.what.Load() }
