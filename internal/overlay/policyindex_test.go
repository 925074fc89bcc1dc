package overlay

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"sync"
	"testing"

	"weft.dev/weft/internal/clusternetwork"
	"weft.dev/weft/internal/policy"
)

// everything returns a change with all objects of a larger cluster: a policy, many pods of another node, and the pods of this node's
// sandboxes.
func everything(t *testing.T, elsewhere int, here ...string) PolicyChange {
	t.Helper()
	all := denyAll(t)
	all.Reset, all.Pods = true, map[policy.Key]*PolicyPod{}
	for _, name := range here {
		maps.Copy(all.Pods, policyPod(name, web).Pods)
	}
	for i := range elsewhere {
		key := policy.Key{Namespace: "default", Name: fmt.Sprint("client-", i)}
		pod := policy.Pod{Key: key, Labels: map[string]string{"app": "client"}, Node: "b"}
		pod.Addresses = []netip.Addr{netip.AddrFrom4([4]byte{10, 128, byte(16 + i/250), byte(1 + i%250)})}
		all.Pods[key] = &PolicyPod{Pod: pod, UIDs: []string{key.Name}}
	}
	return all
}

// crowdedView is policyView with a larger subnet on node b, for the pods of everything.
func crowdedView() View {
	view := policyView()
	view.Remotes = []clusternetwork.HostSubnet{subnet("b", "192.0.2.2", "10.128.16.0/20")}
	return view
}

// Pods that are added and removed while all objects are indexed and rules compiled end in the same state as if they had been added before
// or after.
func TestAttachingWhileAllIsIndexed(t *testing.T) {
	var names []string
	for i := range 40 {
		names = append(names, fmt.Sprint("p", i))
	}
	l := start(t)
	for _, name := range names[:10] {
		l.add(t, l.request(name))
	}
	for range 3 {
		all := everything(t, 2000, names...)
		var group sync.WaitGroup
		group.Go(func() {
			for _, name := range names[10:] {
				if _, err := l.Add(context.Background(), l.request(name)); err != nil {
					t.Errorf("ADD of %s: %v", name, err)
				}
				if name < "p20" || name > "p29" {
					continue
				}
				if err := l.Del(context.Background(), l.request(name)); err != nil {
					t.Errorf("DEL of %s: %v", name, err)
				}
			}
		})
		l.policies(t, all)
		l.update(t, crowdedView())
		group.Wait()
		l.settled(t)
		for _, name := range names {
			want := "isolated"
			if name >= "p20" && name <= "p29" {
				want = "closed"
			}
			if got := l.opens(t, l.request(name)); got != want {
				t.Errorf("the port of %s is %s, want %s", name, got, want)
			}
		}
		if n := l.named(t, netip.MustParseAddr("10.128.23.250")); n != 1 {
			t.Errorf("%d flows name a client of another node, want 1", n)
		}
		// An agent that starts with the present pods has the same flows.
		l.policies(t, PolicyChange{})
		before := l.node.flows.String()
		next := l.restartWith(t, all, crowdedView())
		if after := l.node.flows.String(); after != before {
			t.Errorf("one that begins anew has other flows")
		}
		l = next
		for _, name := range names[10:] {
			if err := l.Del(context.Background(), l.request(name)); err != nil {
				t.Error(err)
			}
		}
		l.update(t, sample())
		l.settled(t)
	}
}

// restartWith stops this agent and starts the next one with all objects and a view.
func (l *life) restartWith(t *testing.T, all PolicyChange, view View) *life {
	t.Helper()
	l.stop()
	next := l.node.begin(t)
	t.Cleanup(next.stop)
	next.policies(t, all)
	next.update(t, view)
	next.settled(t)
	return next
}
