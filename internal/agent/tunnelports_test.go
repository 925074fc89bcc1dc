package agent

import (
	"io"
	"log/slog"
	"reflect"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/internal/clusternetwork"
)

func telling(name string, version int, ports ...int32) networkv1.HostSubnet {
	return networkv1.HostSubnet{
		ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: strconv.Itoa(version)},
		Status:     networkv1.HostSubnetStatus{VXLANPorts: ports},
	}
}

// newTunnelPorts returns those of the node own, and how often it was to be looked at them again.
func newTunnelPorts(log io.Writer) (p *tunnelPorts, looks *atomic.Int32) {
	looks = &atomic.Int32{}
	return &tunnelPorts{node: "own", log: slog.New(slog.NewTextHandler(log, nil)), signal: func() { looks.Add(1) }}, looks
}

// What the agent has written counts until it has seen it, and what it has programmed before it has written it: it neither opens a port that
// it may still tell others to be closed, nor moves its tunnels by what it tells no more.
func TestTunnelPortsUntilSeen(t *testing.T) {
	p, looks := newTunnelPorts(io.Discard)
	places := func(what string, wanted uint16, own networkv1.HostSubnet, port uint16, closed ...uint16) {
		t.Helper()
		want := clusternetwork.TunnelPorts{Port: port, Closed: closed}
		if got := p.place(wanted, []networkv1.HostSubnet{own, telling("other", 1, 4789, 4790)}); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	programs := func(wanted uint16) { p.program(clusternetwork.TunnelPorts{Port: 4789}, wanted) }
	writes := func(what string, there []int32, want ...int32) {
		t.Helper()
		if got := p.write(there); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v is written, want %v", what, got, want)
		}
	}
	looked := func(what string, want int32) {
		t.Helper()
		if got := looks.Swap(0); got != want {
			t.Errorf("%s: it is to be looked %d times again, want %d", what, got, want)
		}
	}
	writes("before anything is programmed, what is there stays", []int32{4700}, 4700)

	programs(4789)
	places("the port changes before anything was told", 4790, telling("own", 1), 4789, 4789, 4790)
	looks.Store(0)
	programs(4790)
	looked("what is told changes", 1)
	programs(4790)
	looked("it does not", 0)
	places("the port changes back before that was told", 4789, telling("own", 1, 4789), 4789, 4789, 4790)
	writes("and it is told meanwhile", nil, 4789, 4790)
	places("while that is under way", 4790, telling("own", 1, 4789), 4789, 4789, 4790)
	p.wrote("7")
	places("before it is seen", 4790, telling("own", 6, 4789), 4789, 4789, 4790)

	places("back again", 4789, telling("own", 6, 4789), 4789, 4789, 4790)
	programs(4789)
	writes("back again", nil, 4789)
	looks.Store(0)
	p.wrote("9")
	looked("what was written is other than before", 1)
	places("and once more: what is seen is what it told before", 4790, telling("own", 7, 4789, 4790), 4789, 4789, 4790)
	programs(4790)
	writes("once more", nil, 4789, 4790)
	p.wrote("")
	places("that was written, and nobody knows whether it was taken", 4790, telling("own", 20, 4789, 4790), 4789, 4789, 4790)
	writes("again", nil, 4789, 4790)
	p.wrote("21")
	looks.Store(0)
	now := telling("own", 21, 4789, 4790)
	p.updated(&now, &now)
	looked("it is seen", 1)
	places("it is seen", 4790, now, 4790, 4789, 4790)
	p.updated(&now, &now)
	looked("all is seen", 0)
}

// What others tell is looked at soon, together; and what they tell of wrongly closes nothing that pods need.
func TestTunnelPortsOfOthers(t *testing.T) {
	var log strings.Builder
	p, looks := newTunnelPorts(&log)
	p.program(clusternetwork.TunnelPorts{Port: 4789}, 4789)
	looks.Store(0)
	old, now := telling("b", 1, 4789), telling("b", 2, 4789, 4790)
	var due []func()
	var rests []time.Duration
	p.after = func(rest time.Duration, f func()) *time.Timer {
		due, rests = append(due, f), append(rests, rest)
		return nil
	}
	hear := func(what string, rest time.Duration) {
		t.Helper()
		due, rests = nil, nil
		for range 3 {
			p.updated(&old, &now)
		}
		p.updated(&now, &now)
		if got := looks.Swap(0); got != 0 || len(due) != 1 || rests[0] != rest {
			t.Fatalf("%s: it is looked %d times at once, and after %v; want one after %s", what, got, rests, rest)
		}
		due[0]()
		if got := looks.Swap(0); got != 1 {
			t.Errorf("%s: it is looked %d times in the end, want once", what, got)
		}
	}
	hear("while it waits for nobody", restingGather)

	node, host := telling("node", 1), telling("host", 1)
	node.Annotations = map[string]string{networkv1.AnnotationNodeUID: "u"}
	all := []networkv1.HostSubnet{telling("own", 1, 4789, 4790), telling("bad", 1, 53, 4790), telling("b", 1, 4789, 4790), node, host}
	for range 2 {
		if got, want := p.place(4790, all), (clusternetwork.TunnelPorts{Port: 4789, Closed: []uint16{4789, 4790}}); !reflect.DeepEqual(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
	}
	hear("while it waits", waitingGather)
	if said := log.String(); strings.Count(said, "\n") != 1 || !strings.Contains(said, "wanted=4790 now=4789 waiting_for=1 nodes=node\n") {
		t.Errorf("it says %s", said)
	}
}

// Of other nodes' status their ports are kept, and nothing else.
func TestPortsOfOthersAreKept(t *testing.T) {
	m := newMarks()
	m.node = "own"
	other := telling("other", 1, 4789)
	other.Status.Attachments = 7
	if _, err := m.strip(&other); err != nil || !reflect.DeepEqual(other.Status, networkv1.HostSubnetStatus{VXLANPorts: []int32{4789}}) {
		t.Errorf("%+v, %v", other.Status, err)
	}
}
