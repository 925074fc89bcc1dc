package events

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/time/rate"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientset "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/events"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/ipam"
	"weft.dev/weft/internal/metrics"
	"weft.dev/weft/internal/metrics/metricstest"
	"weft.dev/weft/internal/reconcile"
	"weft.dev/weft/internal/testwait"
)

// quiet returns a recorder whose events are discarded.
func quiet() *Recorder {
	return &Recorder{
		sink: events.NewFakeRecorder(1000), node: "n1", metrics: metrics.NewAgent("v"),
		limit: rate.NewLimiter(rate.Inf, 1), sent: map[eventKey]time.Time{},
	}
}

func addOf(pod, container string) *cni.Request {
	return &cni.Request{
		Command: cni.CommandAdd, ContainerID: container,
		Args: cni.Args{PodNamespace: "default", PodName: pod, PodUID: "uid-" + pod},
	}
}

// A failure of a pod is reported on the pod, once per reason, for any sandbox. A failure that only requires waiting is not. Events on the Node
// about several engines or records are not merged.
func TestEventsOfPods(t *testing.T) {
	clients := clientset.NewClientset()
	m := metrics.NewAgent("v")
	r, err := New(t.Context(), clients, "n1", m)
	if err != nil {
		t.Fatal(err)
	}
	for _, container := range []string{"c1", "c2"} {
		r.Request(addOf("web", container), cni.Errorf(cni.CodeUnsupportedField, "attachment %s/eth0: runtimeConfig.ips: not here", container))
	}
	r.Request(addOf("early", "c3"), cni.Errorf(cni.CodeTryAgainLater, "waiting for the API server"))
	r.Request(addOf("fine", "c4"), nil)
	r.Request(addOf("late", "c5"), cni.Errorf(cni.CodeTryAgainLater, "subnet 10.128.0.0/23: %w", ipam.ErrExhausted))
	r.Drift(reconcile.Event{Engine: "openflow", Drift: reconcile.Drift{Missing: 2}})
	r.Drift(reconcile.Event{Engine: "nft", Drift: reconcile.Drift{Missing: 1}})
	r.Closed(attach.Record{ContainerID: "c6", IfName: "eth0", PodNamespace: "default", PodName: "shut", PodUID: "uid-shut"}, errors.New("outside the node's subnet"))
	r.Unreadable(map[reconcile.Owner]error{"record/c7.json": errors.New("c7 cut short"), "record/c8.json": errors.New("c8 cut short"), "attachment/c6/eth0": errors.New("outside the node's subnet")})
	r.Service("default", "dns", "u", "port 53: affinity is not kept")
	var list *eventsv1.EventList
	deadline, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for list == nil || len(list.Items) < 9 {
		if list, err = clients.EventsV1().Events("").List(t.Context(), metav1.ListOptions{}); err != nil {
			t.Fatal(err)
		}
		select {
		case <-ticker.C:
		case <-deadline.Done():
			t.Fatalf("only %d events: %v", len(list.Items), list.Items)
		}
	}
	have, notes := map[string]string{}, ""
	for _, e := range list.Items {
		notes += e.Note + "\n"
		have[fmt.Sprintf("%s/%s %s %s", e.Regarding.Kind, e.Regarding.Name, e.Reason, e.Type)] = e.Note
		if e.ReportingController != "weft-agent" || e.Regarding.Kind == "Pod" && e.Regarding.UID == "" {
			t.Errorf("event %+v", e)
		}
	}
	for _, want := range []string{
		"Pod/web AttachFailed Warning", "Pod/late AttachFailed Warning", "Node/n1 PodAddressesExhausted Warning",
		"Node/n1 DriftRepaired Warning", "Pod/shut " + reasonClosed + " Warning", "Node/n1 " + reasonRecord + " Warning", "Service/dns ServiceNotAsSpecified Warning",
	} {
		if _, ok := have[want]; !ok {
			t.Errorf("no event %s in %v", want, have)
		}
	}
	for _, words := range []string{"openflow: what Weft had programmed", "nft: what Weft had programmed", "c7 cut short", "c8 cut short"} {
		if !strings.Contains(notes, words) {
			t.Errorf("no event with %q in\n%s", words, notes)
		}
	}
	if len(have) != 7 || !strings.Contains(have["Pod/web AttachFailed Warning"], "the sandbox") {
		t.Errorf("events %v", have)
	}
	metricstest.HasLines(t, m, `weft_events_total{result="sent"} 9`, `weft_events_total{result="dropped"} 0`)
}

// Each address that a node cannot hold is reported, and again when its HostSubnet is another one. Events of different addresses are not
// merged.
func TestEventsOfEgressIPs(t *testing.T) {
	clients := clientset.NewClientset()
	r, err := New(t.Context(), clients, "n1", metrics.NewAgent("v"))
	if err != nil {
		t.Fatal(err)
	}
	own, vip := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.50")
	r.HostSubnet("u", "7", own, "own")
	r.HostSubnet("u", "7", own, "own")
	r.HostSubnet("u", "7", vip, "virtual")
	r.HostSubnet("u", "8", own, "own, still")
	testwait.Until(t, "three events", func() bool {
		list, err := clients.EventsV1().Events("").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		notes := map[string]int{}
		for _, e := range list.Items {
			notes[e.Note]++
		}
		return maps.Equal(notes, map[string]int{"own": 1, "virtual": 1, "own, still": 1})
	})
}

// patience bounds the wait for events.
const patience = 20 * time.Second

// However many failures there are, the events sent and the memory kept are bounded.
func TestEventsAreBounded(t *testing.T) {
	r := quiet()
	r.limit = rate.NewLimiter(0, eventBurst)
	const many = 5 * eventMemory
	for i := range many {
		r.Request(addOf(fmt.Sprintf("pod-%d", i), "c"), cni.Errorf(cni.CodeIO, "disk full: %s", strings.Repeat("ä", 2000)))
	}
	if len(r.sent) > eventMemory {
		t.Errorf("%d are remembered", len(r.sent))
	}
	metricstest.HasLines(t, r.metrics, fmt.Sprintf(`weft_events_total{result="sent"} %d`, eventBurst),
		fmt.Sprintf(`weft_events_total{result="dropped"} %d`, many-eventBurst))
}

// An address that a node cannot hold is reported once, although the HostSubnet's version changes with each write by the agent.
func TestHostSubnetIsReportedOnceForItsVersions(t *testing.T) {
	sink := events.NewFakeRecorder(10)
	r := &Recorder{sink: sink, node: "n1", metrics: metrics.NewAgent("v1"), limit: rate.NewLimiter(rate.Inf, 1), sent: map[eventKey]time.Time{}}
	address := netip.MustParseAddr("192.0.2.100")
	for _, version := range []string{"1", "2", "2", "3"} {
		r.HostSubnet("uid", version, address, "no room")
	}
	r.HostSubnet("uid", "3", address, "no network")
	if got := len(sink.Events); got != 2 {
		t.Errorf("%d events, not one for each of the reasons", got)
	}
}
