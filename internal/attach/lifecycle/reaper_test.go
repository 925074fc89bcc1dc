package lifecycle_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/placement"
	"weft.dev/weft/internal/testwait"
)

// TestRemoveHangs: a network that waits for its engines delays neither another network's removals nor its requests.
func TestRemoveHangs(t *testing.T) {
	r := newRig(t)
	r.placed["b"] = placement.Decision{Network: "blue"}
	r.add("a")
	r.add("b")
	hang := make(chan struct{})
	r.red.mu.Lock()
	r.red.hang = hang
	r.red.mu.Unlock()
	r.del("a")
	r.del("b")
	r.gone("b")
	r.placed["c"] = placement.Decision{Network: "blue"}
	r.add("c")
	close(hang)
	r.gone("a")
}

// TestAddBeforeHandover: the rest of an attachment from before the restart is not removed before the network has handed over.
func TestAddBeforeHandover(t *testing.T) {
	r := newRig(t)
	r.add("a")
	rec, err := r.store.Get(key("a"))
	if err != nil {
		t.Fatal(err)
	}
	rec.State = attach.Closing
	r.stop()
	if r.store, err = attach.Open(r.dir); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(r.store.Put(t.Context(), rec), r.store.Close()); err != nil {
		t.Fatal(err)
	}
	r.start()
	_, err = r.Add(t.Context(), request(cni.CommandAdd, "a"))
	wantCode(t, err, cni.CodeTryAgainLater, "has not taken over yet")
	if len(r.red.calls) > 0 {
		t.Errorf("called before the handover: %q", r.red.calls)
	}
	close(r.handed)
	r.gone("a")
	r.add("a")
}

// TestRepeatedAddTakesItBack: an attachment stays if the runtime repeats its ADD after an undo has left it to the reaper.
func TestRepeatedAddTakesItBack(t *testing.T) {
	r := newRig(t)
	r.add("a")
	rec, err := r.store.Get(key("a"))
	if err != nil {
		t.Fatal(err)
	}
	r.restart()
	r.Records("red").Reap(rec)
	r.add("a")
	close(r.handed)
	testwait.Until(r.t, "the reaper has nothing left", r.Idle)
	r.want("a", "red", true)
}

// TestRestart: complete attachments stay, and their network gets them. Unfinished ones are removed, but not before the network has handed
// over.
func TestRestart(t *testing.T) {
	r := newRig(t)
	r.placed["b"], r.placed["d"] = placement.Decision{Network: "blue"}, placement.Decision{Network: "blue"}
	for _, container := range []string{"a", "b", "c", "d"} {
		r.add(container)
	}
	for container, state := range map[string]attach.State{"c": attach.Planned, "d": attach.Closing} {
		rec, err := r.store.Get(key(container))
		if err != nil {
			t.Fatal(err)
		}
		rec.State = state
		if err := r.store.Put(t.Context(), rec); err != nil {
			t.Fatal(err)
		}
	}
	r.restart()
	for name, want := range map[string]string{"red": "a", "blue": "b"} {
		if have := r.Records(name).Attached(); len(have) != 1 || have[0].ContainerID != want {
			t.Errorf("%s has %v", name, have)
		}
	}
	r.del("b")
	r.want("b", "blue", false) // closed, and not removed yet
	if have := r.Records("blue").Attached(); len(have) != 0 {
		t.Errorf("a closed attachment is taken for attached: %v", have)
	}
	if slices.ContainsFunc(append(r.red.calls, r.blue.calls...), func(call string) bool { return strings.HasPrefix(call, "remove") }) {
		t.Errorf("removed before the networks handed over: %v %v", r.red.calls, r.blue.calls)
	}
	close(r.handed)
	for _, container := range []string{"b", "c", "d"} {
		r.gone(container)
	}
	r.want("a", "red", true)
}
