package overlay

import (
	"testing"

	"weft.dev/weft/internal/link"
)

// What somebody changes of a pod's host end is put back when it is told, and after a restart also when
// nobody told.
func TestHostEndsByHand(t *testing.T) {
	n := newNode(t.TempDir())
	l := n.begin(t)
	t.Cleanup(func() { l.stop() })
	l.update(t, sample())
	req := l.request("s1")
	l.add(t, req)
	l.settled(t)
	pod := l.record(t, req).HostInterface
	ends := func() map[string]link.HostEnd {
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
	put := func(name string, end link.HostEnd) {
		if err := n.pods.Restore(t.Context(), name, end); err != nil {
			t.Fatal(err)
		}
	}
	for name := range want {
		for _, damaged := range []link.HostEnd{
			{MTU: want[name].MTU, Group: 77}, {MTU: 1400, Group: 77, Up: true}, {MTU: want[name].MTU, Up: true},
		} {
			put(name, damaged)
			l.HostEndChanged(name, damaged)
			eventually(t, name+" is as it was", func() bool { return ends()[name] == want[name] })
		}
	}
	l.stop()
	put(pod, link.HostEnd{MTU: 1400})
	l = l.restart(t)
	eventually(t, pod+" is as it was", func() bool { return ends()[pod] == want[pod] })
	l.whole(t, req)
}
