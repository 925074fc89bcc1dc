package agent

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/internal/admin"
)

// board is a HostSubnet in memory whose status is written.
type board struct {
	object networkv1.HostSubnet
	writes int
	fail   error
}

func (b *board) apply(_ context.Context, object *networkv1.HostSubnet) error {
	if b.fail != nil {
		return b.fail
	}
	b.writes++
	conditions := object.Status.Conditions
	if valid := meta.FindStatusCondition(b.object.Status.Conditions, networkv1.ConditionValid); valid != nil {
		conditions = append(conditions, *valid) // another manager's
	}
	b.object.Status = *object.Status.DeepCopy()
	b.object.Status.Conditions = conditions
	return nil
}

func newBoard() (*board, *admin.State, *time.Time, *statusWriter) {
	b := &board{object: networkv1.HostSubnet{
		ObjectMeta: metav1.ObjectMeta{Name: "n1", Generation: 3},
		Status: networkv1.HostSubnetStatus{Conditions: []metav1.Condition{
			{Type: networkv1.ConditionValid, Status: metav1.ConditionTrue, Reason: networkv1.ReasonValid},
		}},
	}}
	committed := time.Date(2026, 1, 1, 0, 0, 0, 7, time.UTC)
	state := &admin.State{
		Node: "n1", Version: "v1", Ready: true, AddressesTotal: 509,
		Engines: []admin.Engine{{Name: "openflow", InStep: true, Items: 58, Committed: &committed}},
	}
	clock := time.Date(2026, 1, 1, 1, 0, 0, 0, time.UTC)
	return b, state, &clock, &statusWriter{
		state:  func(context.Context) admin.State { return *state },
		subnet: func(context.Context) (*networkv1.HostSubnet, error) { return b.object.DeepCopy(), nil },
		apply:  b.apply, log: slog.New(slog.DiscardHandler), now: func() time.Time { return clock }, wake: make(chan struct{}, 1),
	}
}

// TestStatusIsWrittenOnChange: what is wrong at once, numbers in a while, and in steady state nothing.
func TestStatusIsWrittenOnChange(t *testing.T) {
	b, state, clock, w := newBoard()
	look := func(step string, writes int, wait time.Duration) {
		t.Helper()
		left, again := w.look(t.Context())
		if b.writes != writes || left != wait || again != (wait > 0) {
			t.Errorf("%s: %d writes, look again in %s; want %d, %s", step, b.writes, left, writes, wait)
		}
	}
	look("the first", 1, 0)
	*clock = clock.Add(time.Hour)
	look("nothing changed", 1, 0)
	state.AddressesUsed, state.Attachments = 4, 4
	look("numbers, long after", 2, 0)
	state.AddressesUsed = 5
	*clock = clock.Add(time.Second)
	look("numbers again", 2, numberRest-time.Second)
	state.Engines[0].Failures = []admin.Failure{{Owner: "attachment/a/eth0", Message: "no room"}}
	look("a failure, at once", 2, urgentRest-time.Second)
	*clock = clock.Add(urgentRest)
	look("a failure, after the rest", 3, 0)
	c := meta.FindStatusCondition(b.object.Status.Conditions, networkv1.ConditionEnginesInStep)
	if c == nil || c.Status != metav1.ConditionFalse || c.Message != "not programmed: openflow: attachment/a/eth0: no room" {
		t.Errorf("condition %+v", c)
	}
	if b.object.Status.Addresses.Used != 5 {
		t.Errorf("%d addresses are told, not 5", b.object.Status.Addresses.Used)
	}
	since := c.LastTransitionTime
	*clock = clock.Add(time.Hour)
	state.Engines[0].Failures[0].Message = "still no room"
	look("other words for the same", 4, 0)
	if c := meta.FindStatusCondition(b.object.Status.Conditions, networkv1.ConditionEnginesInStep); !c.LastTransitionTime.Equal(&since) {
		t.Errorf("the transition was at %s, and is told as %s", since, c.LastTransitionTime)
	}
}

// TestStatusOfAStartIsOneWrite: what an agent waits for as it starts is told only if it has to wait.
func TestStatusOfAStartIsOneWrite(t *testing.T) {
	b, state, clock, w := newBoard()
	state.Ready, state.Waiting = false, "waiting for the API server"
	if wait, again := w.look(t.Context()); b.writes != 0 || !again || wait != urgentRest {
		t.Errorf("as it starts: %d writes, again %v in %s", b.writes, again, wait)
	}
	*clock = clock.Add(urgentRest)
	if w.look(t.Context()); b.writes != 1 {
		t.Errorf("when it has waited: %d writes", b.writes)
	}
	b, state, _, w = newBoard()
	state.Ready = false
	w.look(t.Context())
	state.Ready = true
	if w.look(t.Context()); b.writes != 1 || !meta.IsStatusConditionTrue(b.object.Status.Conditions, networkv1.ConditionReady) {
		t.Errorf("once it serves: %d writes, %+v", b.writes, b.object.Status.Conditions)
	}
}

// TestStatusIsTriedAgain: a write that fails is, and not in a hurry.
func TestStatusIsTriedAgain(t *testing.T) {
	b, _, clock, w := newBoard()
	b.fail = errors.New("the API server is away")
	if wait, again := w.look(t.Context()); !again || wait != urgentRest {
		t.Errorf("after a failure: again %v in %s", again, wait)
	}
	b.fail = nil
	*clock = clock.Add(urgentRest)
	if _, again := w.look(t.Context()); again || b.writes != 1 {
		t.Errorf("after it came back: %d writes, again %v", b.writes, again)
	}
}

// TestStatusSaysThatTheAgentStopped: and only if it has ever said that it runs.
func TestStatusSaysThatTheAgentStopped(t *testing.T) {
	b, _, _, w := newBoard()
	w.stopped(t.Context())
	if b.writes != 0 {
		t.Errorf("an agent that never served wrote %d times", b.writes)
	}
	w.look(t.Context())
	w.stopped(t.Context())
	c := meta.FindStatusCondition(b.object.Status.Conditions, networkv1.ConditionReady)
	if c == nil || c.Reason != networkv1.ReasonStopped || c.Status != metav1.ConditionFalse {
		t.Errorf("condition %+v", c)
	}
	if valid := meta.FindStatusCondition(b.object.Status.Conditions, networkv1.ConditionValid); valid == nil {
		t.Error("the controller's condition is gone")
	}
	if b.object.Status.Addresses.Total != 509 {
		t.Error("the numbers are gone")
	}
}

// TestStatusIsBounded: whatever fails, the object stays small.
func TestStatusIsBounded(t *testing.T) {
	_, state, clock, _ := newBoard()
	long := make([]byte, 100_000)
	for i := range long {
		long[i] = "ü"[i%2]
	}
	for range 1000 {
		state.Engines[0].Failures = append(state.Engines[0].Failures, admin.Failure{Owner: "service/a/b", Message: string(long)})
	}
	state.Warnings = []string{string(long)}
	status := statusOf(state, &networkv1.HostSubnet{}, *clock)
	if n := len(status.Engines[0].Failures); n != maxFailures {
		t.Errorf("%d failures", n)
	}
	size := 0
	for _, f := range status.Engines[0].Failures {
		size += len(f)
	}
	for _, c := range status.Conditions {
		size += len(c.Message)
	}
	if size > 20_000 {
		t.Errorf("%d bytes", size)
	}
}

// TestStatusOnlyUpdatesDoNotConcern: agents watch all HostSubnets, and compile nothing when one tells how it stands.
func TestStatusOnlyUpdatesDoNotConcern(t *testing.T) {
	old := &networkv1.HostSubnet{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "1", Generation: 1, ResourceVersion: "1"}}
	told := old.DeepCopy()
	told.ResourceVersion, told.Status.Attachments = "2", 9
	if concerns(old, told) {
		t.Error("a status is taken for a change")
	}
	moved := told.DeepCopy()
	moved.Generation, moved.HostIP = 2, "192.0.2.9"
	noted := told.DeepCopy()
	noted.Annotations = map[string]string{networkv1.AnnotationFixedVNID: "7"}
	anew := told.DeepCopy()
	anew.UID = "2"
	for name, now := range map[string]*networkv1.HostSubnet{"an address": moved, "an annotation": noted, "another object": anew} {
		if !concerns(told, now) {
			t.Errorf("%s is not taken for a change", name)
		}
	}
}
