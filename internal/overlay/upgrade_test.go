package overlay

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/openflow/action"
	"weft.dev/weft/internal/openflow/bridge"
	"weft.dev/weft/internal/overlay/pipeline"
	"weft.dev/weft/internal/overlay/pipeline/layout"
)

// If another version had any single flow changed, missing or in addition, the next agent corrects it, although the note in the switch says
// that the state is unchanged: the flows themselves are compared. (OpenShift SDN compared a version number that developers had to
// increase.)
func TestUpgradeFindsEveryFlow(t *testing.T) {
	l := start(t)
	l.add(t, l.request("one"))
	l.settled(t)
	state := l.node.state(t)
	flows, err := l.node.flows.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	alter := func(change bridge.Change) {
		t.Helper()
		l.stop()
		if err := l.node.flows.Commit(t.Context(), change); err != nil {
			t.Fatal(err)
		}
		if l.node.state(t) == state {
			t.Fatalf("nothing is altered by %v", change)
		}
		l = l.node.begin(t)
		l.update(t, sample())
		if got := l.node.state(t); got != state {
			t.Errorf("after %v:\n%s\nwant\n%s", change, got, state)
		}
	}
	altered := 0
	for _, key := range slices.SortedFunc(maps.Keys(flows), func(a, b openflow.Key) int { return strings.Compare(a.String(), b.String()) }) {
		flow, ok := flows[key].(*openflow.Flow)
		if !ok || pipeline.IsNote(key) {
			continue
		}
		other := *flow
		other.Actions = action.Actions{action.Output(layout.PortTun)}
		stray := *flow
		stray.Priority += 7
		changes := []bridge.Change{{Delete: map[openflow.Key]openflow.Entry{key: flow}}}
		if flow.Actions.String() != other.Actions.String() {
			changes = append(changes, bridge.Change{Set: map[openflow.Key]openflow.Entry{key: &other}})
		}
		if _, there := flows[stray.Key()]; !there {
			changes = append(changes, bridge.Change{Set: map[openflow.Key]openflow.Entry{stray.Key(): &stray}})
		}
		for _, change := range changes {
			alter(change)
			altered++
		}
	}
	l.stop()
	if altered < 100 {
		t.Errorf("%d changes are few", altered)
	}
}
