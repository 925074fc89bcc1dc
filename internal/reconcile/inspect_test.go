package reconcile

import (
	"errors"
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// differences renders an inspection's differences by key.
func differences(found Inspection[string, text]) map[string]string {
	all := map[string]string{}
	for _, d := range found.Differences {
		words := []string{"no owner"}
		if len(d.Owners) > 0 {
			words = []string{string(d.Owners[0])}
		}
		if d.Wanted {
			words = append(words, "want "+string(d.Want))
		}
		if d.Held {
			words = append(words, "have "+string(d.Have))
		}
		if d.Err != nil {
			words = append(words, d.Err.Error())
		}
		all[d.Key] = strings.Join(words, ", ")
	}
	return all
}

// TestInspect: what is missing, altered or extra is returned with its owner and corrected afterwards, although the engine, which has read
// it, does not report it again.
func TestInspect(t *testing.T) {
	engine := &memory{state: map[string]text{}}
	loop := runLoop(t, engine, Options[string, text]{Encode: encode, Seal: func(h Hash) (string, text) { return "seal", text(h.String()) }})
	if err := loop.Start(t.Context(), map[Owner]map[string]text{"pod/a": {"a": "1"}, "pod/b": {"b": "2", "c": "3"}}); err != nil {
		t.Fatal(err)
	}
	found, err := loop.Inspect(t.Context())
	if err != nil || len(found.Differences) != 0 || found.Desired != 4 || found.Programmed != 4 {
		t.Fatalf("in step: %+v, %v", found, err)
	}
	engine.tamper(func(state map[string]text) {
		delete(state, "a")
		state["b"], state["d"] = "9", "4"
	})
	if found, err = loop.Inspect(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"a": "pod/a, want 1", "b": "pod/b, want 2, have 9", "d": "no owner, have 4"}
	if diff := cmp.Diff(want, differences(found)); diff != "" {
		t.Errorf("differences (-want +got):\n%s", diff)
	}
	if found, err = loop.Inspect(t.Context()); err != nil || len(found.Differences) != 0 {
		t.Errorf("after that: %+v, %v", found, err)
	}
	state, commits := engine.snapshot()
	if found, err = loop.Inspect(t.Context()); err != nil || len(found.Differences) != 0 {
		t.Errorf("in step again: %+v, %v", found, err)
	}
	if after, again := engine.snapshot(); !maps.Equal(state, after) || again != commits || after["a"] != "1" || after["b"] != "2" || after["d"] != "" {
		t.Errorf("%v, then %v; %d commits more", state, after, again-commits)
	}
}

// TestInspectReportsReasons: what could not be committed is reported with the reason, also by the status.
func TestInspectReportsReasons(t *testing.T) {
	engine := &memory{state: map[string]text{}, bad: map[text]bool{"bad": true}, partial: true}
	loop := runLoop(t, engine, Options[string, text]{})
	if err := loop.Start(t.Context(), map[Owner]map[string]text{"pod/a": {"a": "1"}}); err != nil {
		t.Fatal(err)
	}
	if status := loop.Status(); !status.InStep() || status.Items != 1 || status.Committed.IsZero() {
		t.Errorf("status in step: %+v", status)
	}
	if err := loop.Apply(t.Context(), map[Owner]map[string]text{"pod/b": {"b": "bad"}}); err == nil {
		t.Fatal("a bad value was committed")
	}
	found, err := loop.Inspect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got := differences(found); len(got) != 1 || got["b"] != `pod/b, want bad, b: bad value "bad"` {
		t.Errorf("differences: %v", got)
	}
	if status := loop.Status(); status.InStep() || status.Failures["pod/b"] == nil || status.Items != 2 {
		t.Errorf("status after a failure: %+v", status)
	}
}

// TestInspectNeedsTheDesiredState: before the start, without an engine, and after the end, Inspect returns an error and no differences.
func TestInspectNeedsTheDesiredState(t *testing.T) {
	engine := &memory{state: map[string]text{"stray": "1"}}
	loop := runLoop(t, engine, Options[string, text]{})
	if _, err := loop.Inspect(t.Context()); !errors.Is(err, ErrNotStarted) {
		t.Errorf("before Start: %v", err)
	}
	if have, err := loop.Read(t.Context()); err != nil || len(have) != 1 || have["stray"] != "1" {
		t.Errorf("read before Start: %v, %v", have, err)
	}
	if status := loop.Status(); status.InStep() {
		t.Error("in step before Start")
	}
	if err := loop.Start(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	engine.mu.Lock()
	engine.down = true
	engine.mu.Unlock()
	if _, err := loop.Inspect(t.Context()); !errors.Is(err, ErrUnavailable) {
		t.Errorf("engine away: %v", err)
	}
	loop.stop()
	if _, err := loop.Inspect(t.Context()); !errors.Is(err, ErrStopped) {
		t.Errorf("after the end: %v", err)
	}
}

// TestDryRun: a loop on a dry engine does everything it does otherwise, and does not change the engine.
func TestDryRun(t *testing.T) {
	engine := &memory{state: map[string]text{"a": "1", "old": "0"}}
	loop := runLoop(t, engine, Options[string, text]{})
	loop.driver.engine = DryRun[string, text](engine)
	if err := loop.Start(t.Context(), map[Owner]map[string]text{"pod/a": {"a": "1"}}); err != nil {
		t.Fatal(err)
	}
	if err := loop.Apply(t.Context(), map[Owner]map[string]text{"pod/b": {"b": "2"}}); err != nil {
		t.Fatal(err)
	}
	found, err := loop.Inspect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"b": "pod/b, want 2", "old": "no owner, have 0"}
	if diff := cmp.Diff(want, differences(found)); diff != "" {
		t.Errorf("differences (-want +got):\n%s", diff)
	}
	if state, commits := engine.snapshot(); commits != 0 || len(state) != 2 {
		t.Errorf("a dry run made %d commits: %v", commits, state)
	}
}

// TestOwners: returned are the owners that have something, and those whose removal could not be committed.
func TestOwners(t *testing.T) {
	engine := &memory{state: map[string]text{}}
	loop := runLoop(t, engine, Options[string, text]{})
	if err := loop.Start(t.Context(), map[Owner]map[string]text{"pod/b": {"b": "2"}, "pod/a": {"a": "1"}, "pod/none": {}}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]Owner{"pod/a", "pod/b"}, loop.Owners()); diff != "" {
		t.Errorf("owners (-want +got):\n%s", diff)
	}
	if err := loop.Apply(t.Context(), map[Owner]map[string]text{"pod/b": nil}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]Owner{"pod/a"}, loop.Owners()); diff != "" {
		t.Errorf("owners after one has gone (-want +got):\n%s", diff)
	}
}
