package cluster

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/internal/cluster"
	"weft.dev/weft/internal/metrics"
	"weft.dev/weft/internal/overlay/cluster/plan"
)

func sent(recorder *events.FakeRecorder) []string {
	var all []string
	for {
		select {
		case event := <-recorder.Events:
			all = append(all, event)
		default:
			return all
		}
	}
}

func TestSubnetsAreReported(t *testing.T) {
	recorder := events.NewFakeRecorder(16)
	r := cluster.NewReporter(nameSubnets, networkv1.GroupVersion().String(), recorder, metrics.NewController("v1"))
	hs := func(name, subnet string) networkv1.HostSubnet {
		return networkv1.HostSubnet{ObjectMeta: metav1.ObjectMeta{Name: name}, Subnet: subnet}
	}
	result := plan.SubnetPlan{Because: map[string]string{"gone": "its Node is gone", "bare": "its Node is gone"}}
	done := subnetEvents(r, []networkv1.HostSubnet{hs("moved", "10.128.0.0/23"), hs("f5", ""), hs("gone", "10.129.0.0/23"), hs("bare", "")}, result)
	for _, written := range []networkv1.HostSubnet{
		hs("moved", "10.128.0.0/23"), hs("f5", "10.130.0.0/23"), hs("new", "10.131.0.0/23"), hs("gone", "10.129.0.0/23"), hs("bare", ""),
	} {
		done(&written)
	}
	want := []string{
		"Normal SubnetGiven subnet 10.130.0.0/23 is given to f5",
		"Normal SubnetGiven subnet 10.131.0.0/23 is given to new",
		"Normal SubnetFreed subnet 10.129.0.0/23 is free again: its Node is gone",
	}
	if got := sent(recorder); strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("events %q, want %q", got, want)
	}
}
