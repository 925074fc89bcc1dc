package agent

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"weft.dev/weft/internal/admin"
	"weft.dev/weft/internal/agent/engines"
	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/reconcile"
)

// A closed port is reported as a failure of the flows, in the condition EnginesInStep and in weft diff.
func TestClosedPortIsAFailure(t *testing.T) {
	closed := map[reconcile.Owner]error{"attachment/c1/eth0": errors.New("the port is closed")}
	state := admin.State{Ready: true, Engines: withClosed([]admin.Engine{{Name: engines.NameRules, InStep: true}, {Name: engines.NameFlows, InStep: true}}, closed)}
	want := admin.Failure{Owner: "attachment/c1/eth0", Message: "the port is closed"}
	if flows := state.Engines[1]; !state.Engines[0].InStep || flows.InStep || !slices.Equal(flows.Failures, []admin.Failure{want}) {
		t.Errorf("engines %+v", state.Engines)
	}
	diff := admin.Diff{InStep: true, Engines: []admin.EngineDiff{{Name: engines.NameRules}, {Name: engines.NameFlows}}}
	diffClosed(&diff, closed)
	if diff.InStep || len(diff.Engines[0].Differences) != 0 || len(diff.Engines[1].Differences) != 1 || diff.Engines[1].Differences[0].Why != "the port is closed" {
		t.Errorf("diff %+v", diff)
	}
	if whole := withClosed([]admin.Engine{{Name: engines.NameFlows, InStep: true}}, nil); !whole[0].InStep {
		t.Error("with no port closed the flows are not in step")
	}
}

// A record of this boot that cannot be read is a failure that names the file and the remedy. One of an earlier boot is ignored.
func TestBrokenRecordIsAFailure(t *testing.T) {
	boot := time.Unix(1000, 0)
	broken := brokenRecords([]attach.Broken{
		{Path: "/r/broken/a.json", Err: errors.New("cut short"), Modified: boot.Add(time.Second)},
		{Path: "/r/broken/b.json", Err: errors.New("cut short"), Modified: boot.Add(-time.Second)},
	}, boot)
	state := admin.State{Ready: true, Engines: withClosed([]admin.Engine{{Name: engines.NameFlows, InStep: true}}, broken)}
	flows := state.Engines[0]
	if len(broken) != 1 || len(flows.Failures) != 1 {
		t.Fatalf("%d broken records, failures %v", len(broken), flows.Failures)
	}
	for _, words := range []string{"record/a.json", "/r/broken/a.json cannot be read", "cut short", "delete the pod"} {
		if flows.InStep || !strings.Contains(flows.Failures[0].String(), words) {
			t.Errorf("failure %s: without %q", flows.Failures[0].String(), words)
		}
	}
}
