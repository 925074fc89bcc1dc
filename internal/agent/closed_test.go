package agent

import (
	"errors"
	"strings"
	"testing"
	"time"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/internal/admin"
	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/reconcile"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A closed port is reported as a failure of the flows, in the condition EnginesInStep and in weft diff.
func TestClosedPortIsAFailure(t *testing.T) {
	closed := map[reconcile.Owner]error{"attachment/c1/eth0": errors.New("the port is closed")}
	state := admin.State{Ready: true, Engines: withClosed([]admin.Engine{{Name: nameRules, InStep: true}, {Name: nameFlows, InStep: true}}, closed)}
	if c := inStepCondition(&state); c.Status != metav1.ConditionFalse || c.Reason != networkv1.ReasonFailing ||
		c.Message != "not programmed: openflow: attachment/c1/eth0: the port is closed" {
		t.Errorf("condition %+v", c)
	}
	diff := admin.Diff{InStep: true, Engines: []admin.EngineDiff{{Name: nameRules}, {Name: nameFlows}}}
	diffClosed(&diff, closed)
	if diff.InStep || len(diff.Engines[0].Differences) != 0 || len(diff.Engines[1].Differences) != 1 || diff.Engines[1].Differences[0].Why != "the port is closed" {
		t.Errorf("diff %+v", diff)
	}
	if whole := withClosed([]admin.Engine{{Name: nameFlows, InStep: true}}, nil); !whole[0].InStep {
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
	state := admin.State{Ready: true, Engines: withClosed([]admin.Engine{{Name: nameFlows, InStep: true}}, broken)}
	c := inStepCondition(&state)
	for _, words := range []string{"record/a.json", "/r/broken/a.json cannot be read", "cut short", "delete the pod"} {
		if c.Status != metav1.ConditionFalse || len(broken) != 1 || !strings.Contains(c.Message, words) {
			t.Errorf("condition %+v: without %q", c, words)
		}
	}
}
