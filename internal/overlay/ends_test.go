package overlay

import (
	"context"
	"fmt"
	"maps"
	"testing"

	"weft.dev/weft/internal/link/podlink"
)

// A host veth that another program changed is restored after an event, and after a restart also without an event.
func TestHostEndsByHand(t *testing.T) {
	n := newNode(t.TempDir())
	l := n.begin(t)
	t.Cleanup(func() { l.stop() })
	l.update(t, sample())
	req := l.request("s1")
	l.add(t, req)
	l.settled(t)
	pod := l.record(t, req).HostInterface
	ends := func() map[string]podlink.HostEnd {
		all, err := n.pods.HostEnds(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	want := ends()
	if len(want) != 1 {
		t.Fatalf("host ends %v", want)
	}
	put := func(name string, end podlink.HostEnd) {
		if err := n.pods.Restore(t.Context(), name, end); err != nil {
			t.Fatal(err)
		}
	}
	for name := range want {
		for _, damaged := range []podlink.HostEnd{
			{MTU: want[name].MTU, Group: 77}, {MTU: 1400, Group: 77, Up: true}, {MTU: want[name].MTU, Up: true},
		} {
			put(name, damaged)
			l.HostEndChanged(name, damaged)
			eventually(t, name+" is as it was", func() bool { return ends()[name] == want[name] })
		}
	}
	l.stop()
	put(pod, podlink.HostEnd{MTU: 1400})
	l = l.restart(t)
	eventually(t, pod+" is as it was", func() bool { return ends()[pod] == want[pod] })
	l.whole(t, req)
}

// A host veth that another program changes while the port is being created is restored once it is complete: that of a pod's own port, and
// that of a pre-plugged one.
func TestHostEndsChangedWhileMade(t *testing.T) {
	for name, spare := range map[string]int{"own": 0, "pre-plugged": 4} {
		t.Run(name, func(t *testing.T) {
			l := prepluggedStart(t, spare)
			eventually(t, "the look at the start is over", func() bool { return !l.ports.Ends.Pending() })
			before := l.hostEnds(t)
			changed := make(chan map[string]podlink.HostEnd, 1)
			l.node.rowEngine.before(func() { // the links exist, and the ports do not
				made := l.hostEnds(t)
				maps.DeleteFunc(made, func(name string, _ podlink.HostEnd) bool { _, old := before[name]; return old })
				if len(made) == 0 || len(changed) > 0 {
					return
				}
				for name := range made {
					other := podlink.HostEnd{MTU: 1400}
					if err := l.node.pods.Restore(context.Background(), name, other); err != nil {
						t.Error(err)
					}
					l.HostEndChanged(name, other)
				}
				changed <- made
			})
			for i := range 3 {
				l.add(t, l.request(fmt.Sprintf("s%d", i)))
			}
			eventually(t, "ports are made", func() bool { return len(changed) > 0 })
			want := <-changed
			eventually(t, "they are as they are to be", func() bool {
				now := l.hostEnds(t)
				maps.DeleteFunc(now, func(name string, _ podlink.HostEnd) bool { _, ours := want[name]; return !ours })
				return maps.Equal(now, want)
			})
		})
	}
}

// hostEnds returns the existing host veths.
func (p programmed) hostEnds(t tb) map[string]podlink.HostEnd {
	t.Helper()
	all, err := p.at.pods.HostEnds(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return all
}
