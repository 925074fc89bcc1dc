package hostsubnet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	networkv1 "weft.dev/weft/api/openshift/v1"
	weftv1 "weft.dev/weft/api/weft/v1"
	"weft.dev/weft/internal/admin"
)

// board is a HostSubnet in memory with a status that can be written.
type board struct {
	section weftv1.NodeNetworkSection

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

func newBoard() (*board, *admin.State, *time.Time, *Writer) {
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
	return b, state, &clock, &Writer{
		state:  func(context.Context) admin.State { return *state },
		subnet: func(context.Context) (*networkv1.HostSubnet, error) { return b.object.DeepCopy(), nil },
		nodes:  func(context.Context) int { return 2 },
		report: func(s weftv1.NodeNetworkSection) { b.section = s },
		apply:  b.apply, log: slog.New(slog.DiscardHandler), now: func() time.Time { return clock }, wake: make(chan struct{}, 1),
	}
}

// TestStatusIsWrittenOnChange: failures are written at once, numbers after a while, and nothing in steady state.
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
		t.Errorf("%d addresses reported, want 5", b.object.Status.Addresses.Used)
	}
	since := c.LastTransitionTime
	*clock = clock.Add(time.Hour)
	state.Engines[0].Failures[0].Message = "still no room"
	look("another message for the same state", 4, 0)
	if c := meta.FindStatusCondition(b.object.Status.Conditions, networkv1.ConditionEnginesInStep); !c.LastTransitionTime.Equal(&since) {
		t.Errorf("the transition was at %s, but is reported as %s", since, c.LastTransitionTime)
	}
}

// A failed write may have been applied, and so may one before it. It is therefore repeated even if the object looks up to date.
func TestStatusIsWrittenAgainAfterAFailure(t *testing.T) {
	b, _, clock, w := newBoard()
	apply := w.apply
	w.apply = func(ctx context.Context, object *networkv1.HostSubnet) error {
		return errors.Join(apply(ctx, object), errors.New("no answer"))
	}
	if wait, again := w.look(t.Context()); b.writes != 1 || !again || wait != urgentRest {
		t.Errorf("%d writes, again %v in %s", b.writes, again, wait)
	}
	w.apply = apply
	for range 2 {
		*clock = clock.Add(urgentRest)
		w.look(t.Context())
	}
	if b.writes != 2 {
		t.Errorf("%d writes, want 2", b.writes)
	}
}

// The section of the overlay in the node's NodeNetwork agrees with its HostSubnet. An agent that has just started reports no section.
func TestStatusIsReportedAsASection(t *testing.T) {
	b, state, clock, w := newBoard()
	state.Ready, state.Waiting = false, "waiting for the API server"
	if w.look(t.Context()); b.section.Name != "" {
		t.Errorf("of a start: %+v", b.section)
	}
	expect := func(ready, step metav1.ConditionStatus) {
		t.Helper()
		w.look(t.Context())
		*clock = clock.Add(time.Hour)
		w.look(t.Context())
		has := func(kind string) metav1.ConditionStatus {
			if c := meta.FindStatusCondition(b.section.Conditions, kind); c != nil {
				return c.Status
			}
			return ""
		}
		if b.section.Name != weftv1.NetworkOverlay || has(weftv1.NetworkReady) != ready || has(weftv1.NetworkInStep) != step || b.section.Facts["weft"] != "v1" {
			t.Errorf("%+v, want Ready %s and InStep %s", b.section, ready, step)
		}
	}
	expect(metav1.ConditionFalse, metav1.ConditionTrue)
	state.Ready, state.Waiting = true, ""
	expect(metav1.ConditionTrue, metav1.ConditionTrue)
	state.Refused = "no"
	expect(metav1.ConditionTrue, metav1.ConditionFalse)
}

// TestStatusOfAStartIsOneWrite: what a starting agent waits for is reported only if it really has to wait.
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

// TestStatusIsTriedAgain: a write that fails is retried after a delay.
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

// TestStatusReportsThatTheAgentStopped: only if it has ever reported that it runs.
func TestStatusReportsThatTheAgentStopped(t *testing.T) {
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
		t.Error("the controller's condition was removed")
	}
	if b.object.Status.Addresses.Total != 509 {
		t.Error("the numbers were removed")
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

// While objects change permanently, few nodes write every 5 seconds. More nodes write so often that the API server sends 200 events a
// second. All write at least once a minute, unless so many nodes need longer for their turns.
func TestStatusRests(t *testing.T) {
	for nodes, want := range map[int]time.Duration{
		0: time.Minute, 2: 5 * time.Second, 31: 5 * time.Second, 60: 18 * time.Second, 100: 50 * time.Second, 1000: time.Minute, 2000: 2 * time.Minute,
	} {
		if got := steadyRest(nodes); got != want {
			t.Errorf("with %d nodes the pause is %s, want %s", nodes, got, want)
		}
	}
}

// A new resourceVersion observed is written soon, in turn with other nodes, for a few times. If it continues to change, writes become rarer
// the more nodes receive them. Objects that are not realised are always reported soon.
func TestStatusReportsWhatIsRealised(t *testing.T) {
	const nodes = 50
	b, state, clock, w := newBoard()
	w.nodes = func(context.Context) int { return nodes }
	state.RealisedKnown = true
	say := func(version string, exceptions map[string]string) {
		state.Realised = []admin.Realised{{Kind: "NetworkPolicy", Version: version, Exceptions: exceptions}}
	}
	say("1", nil)
	w.look(t.Context()) // the first
	turn := turnOf("n1", nodes)
	step := func(what string, writes int) {
		t.Helper()
		for {
			wait, again := w.look(t.Context())
			if !again || b.writes > writes {
				break
			}
			*clock = clock.Add(wait)
		}
		if b.writes != writes+1 {
			t.Fatalf("%s: %d writes, not %d", what, b.writes, writes+1)
		}
	}
	*clock = clock.Add(time.Hour)
	begin := *clock
	for i := range marksInRow {
		at := *clock
		say(strconv.Itoa(2+i), nil)
		step("a change in a row", b.writes)
		if took := clock.Sub(at); took < turn || took > urgentRest+turn {
			t.Errorf("change %d is written after %s", i, took)
		}
	}
	at := *clock
	say("10", nil)
	step("a change that is one too many", b.writes)
	const rest = 12500 * time.Millisecond // 50 events for each of 50 nodes, at 200 a second
	if took := clock.Sub(at); took != rest {
		t.Errorf("it is written after %s, not after %s", took, rest)
	}
	at = *clock
	say("10", map[string]string{"shop/b": strings.Repeat("x", 1000), "shop/a": "it cannot be"})
	step("an exception", b.writes)
	if took := clock.Sub(at); took != urgentRest {
		t.Errorf("an exception is written after %s", took)
	}
	if got := b.object.Status.Realised[0]; got.Exceptions[0].Object != "shop/a" || got.Exceptions[0].Reason != "it cannot be" || len(got.Exceptions[1].Reason) > 300 {
		t.Errorf("reported: %+v", got)
	}
	at = *clock
	say("", nil)
	step("no version is known", b.writes)
	if took := clock.Sub(at); took != urgentRest {
		t.Errorf("the unknown version is written after %s", took)
	}
	*clock = begin.Add(time.Hour)
	writes := b.writes
	state.RealisedKnown, state.Realised = false, nil
	if _, again := w.look(t.Context()); again || b.writes != writes {
		t.Errorf("an agent without a version yet withdraws its predecessor's report: %+v", b.object.Status.Realised)
	}
	many := map[string]string{}
	for i := range 50 {
		many[fmt.Sprintf("shop/%02d", i)] = "no"
	}
	if reported := realisedStatus(&admin.Realised{Exceptions: many}); len(reported.Exceptions) != maxExceptions || reported.More != 50-maxExceptions || reported.Exceptions[19].Object != "shop/19" {
		t.Errorf("of many: %+v", reported)
	}
}

// Nodes take turns over a time that grows with their number.
func TestTurns(t *testing.T) {
	for nodes, most := range map[int]time.Duration{0: 0, 10: 10 * markTurn, 1000: time.Minute, 5000: 5 * time.Minute} {
		early, late := 0, 0
		for i := range 400 {
			turn := turnOf("node-"+strconv.Itoa(i), nodes) - markGather
			if turn < 0 || turn > most {
				t.Fatalf("one of %d nodes writes after %s", nodes, turn)
			}
			if turn < most/2 {
				early++
			} else {
				late++
			}
		}
		if nodes > 0 && (early < 100 || late < 100) {
			t.Errorf("of %d nodes %d write in the first half, %d in the second", nodes, early, late)
		}
	}
}

// The HostSubnet's condition lists leftovers, after real obstructions.
func TestLeftoversInTheCondition(t *testing.T) {
	for _, c := range []struct {
		name            string
		state           admin.State
		status          metav1.ConditionStatus
		reason, message string
	}{
		{"nothing", admin.State{}, metav1.ConditionTrue, networkv1.ReasonOpen, ""},
		{"leftovers", admin.State{Leftovers: []string{"a", "b"}}, metav1.ConditionFalse, networkv1.ReasonLeftovers, "left from OpenShift SDN: a; b"},
		{"both", admin.State{Warnings: []string{"w"}, Leftovers: []string{"a"}}, metav1.ConditionFalse, networkv1.ReasonObstructed, "w; left from OpenShift SDN: a"},
	} {
		if got := unobstructedCondition(&c.state); got.Status != c.status || got.Reason != c.reason || got.Message != c.message {
			t.Errorf("%s: %+v", c.name, got)
		}
	}
}

// A failure of one object is named in the condition EnginesInStep.
func TestFailureInTheCondition(t *testing.T) {
	state := admin.State{Ready: true, Engines: []admin.Engine{
		{Name: "nft", InStep: true}, {Name: "openflow", Failures: []admin.Failure{{Owner: "attachment/c1/eth0", Message: "the port is closed"}}},
	}}
	if c := inStepCondition(&state); c.Status != metav1.ConditionFalse || c.Reason != networkv1.ReasonFailing ||
		c.Message != "not programmed: openflow: attachment/c1/eth0: the port is closed" {
		t.Errorf("condition %+v", c)
	}
}

// The status has the egress IPs that the node refuses. While they are not known, it keeps those of the agent before.
func TestStatusOfRefusedEgressIPs(t *testing.T) {
	refused := map[string]string{"198.51.100.7": "is in another network", "192.0.2.50": "is an address of the node"}
	state := admin.State{RefusedEgressIPs: refused}
	n1 := networkv1.HostSubnet{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	if got := statusOf(&state, &n1, time.Unix(1, 0)); len(got.RefusedEgressIPs) != 2 || got.RefusedEgressIPs[0].IP != "192.0.2.50" {
		t.Errorf("status %v", got.RefusedEgressIPs)
	}
	n1.Status.RefusedEgressIPs = []networkv1.HostSubnetRefusedEgressIP{{IP: "192.0.2.102", Reason: "it is taken"}}
	if got := statusOf(&admin.State{}, &n1, time.Unix(1, 0)); len(got.RefusedEgressIPs) != 1 {
		t.Errorf("the status of an agent that starts loses what was known: %v", got.RefusedEgressIPs)
	}
}

// If more egress IPs are refused than the status has room for, it has the lowest: the readers take every address above them for refused.
func TestStatusOfManyRefusedEgressIPs(t *testing.T) {
	state, first := admin.State{RefusedEgressIPs: map[string]string{}}, netip.MustParseAddr("192.0.2.7")
	for ip := first; len(state.RefusedEgressIPs) <= networkv1.MaxRefusedEgressIPs; ip = ip.Next() {
		state.RefusedEgressIPs[ip.String()] = "it is taken"
	}
	got := statusOf(&state, &networkv1.HostSubnet{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, time.Unix(1, 0)).RefusedEgressIPs
	if len(got) != networkv1.MaxRefusedEgressIPs {
		t.Fatalf("%d are reported", len(got))
	}
	for i, want := 0, first; i < len(got); i, want = i+1, want.Next() {
		if got[i].IP != want.String() {
			t.Fatalf("number %d is %s, want %s", i, got[i].IP, want)
		}
	}
}
