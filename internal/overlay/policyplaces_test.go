package overlay

import (
	"maps"
	"net/netip"
	"slices"
	"testing"

	"weft.dev/weft/internal/clusternetwork"
	"weft.dev/weft/internal/policy"
)

// remoteClient returns a pod of another node that denyAll admits, with the addresses in its status.
func remoteClient(node string, addresses ...string) PolicyChange {
	key := policy.Key{Namespace: "default", Name: "remote"}
	pod := policy.Pod{Key: key, Labels: client, Node: node}
	for _, text := range addresses {
		pod.Addresses = append(pod.Addresses, netip.MustParseAddr(text))
	}
	return PolicyChange{Pods: map[policy.Key]*PolicyPod{key: {Pod: pod, UIDs: []string{"uid-remote"}}}}
}

// Of the addresses in a pod's status, only those in its own node's HostSubnet count: an address of another node's pods or gateway, of this
// node, or of no node is admitted by no policy.
func TestRemotePodsHaveAddressesOfTheirNode(t *testing.T) {
	l := startPolicies(t, newNode(t.TempDir()), denyAll(t), policyPod("server", web))
	l.add(t, l.request("server"))
	foreign := []string{"10.128.2.7", "10.128.2.1", "10.128.0.9", "10.128.6.7", "10.128.4.1", "10.128.4.0", "10.128.5.255", "192.0.2.2", "198.51.100.7"}
	l.policies(t, remoteClient("c", append(slices.Clone(foreign), "10.128.4.7")...))
	admitted := func(when string, want ...string) {
		t.Helper()
		for _, text := range append(slices.Clone(foreign), "10.128.4.7") {
			expected := 0
			if slices.Contains(want, text) {
				expected = 1
			}
			if got := l.named(t, netip.MustParseAddr(text)); got != expected {
				t.Errorf("%s: %d flows admit %s, want %d", when, got, text, expected)
			}
		}
	}
	admitted("pod of node c", "10.128.4.7")
	for _, node := range []string{"", "a", "unknown"} {
		l.policies(t, remoteClient(node, append(slices.Clone(foreign), "10.128.4.7")...))
		admitted("pod of node " + node)
	}
}

// A node that is created again gets another subnet, and its former one goes to another node, while its old pod is still in the API.
func TestRemotePodsFollowTheirNodesSubnet(t *testing.T) {
	l := startPolicies(t, newNode(t.TempDir()), denyAll(t), policyPod("server", web), remoteClient("c", "10.128.4.7"))
	l.add(t, l.request("server"))
	old := netip.MustParseAddr("10.128.4.7")
	expect := func(when string, want int) {
		t.Helper()
		l.policies(t, PolicyChange{})
		if got := l.named(t, old); got != want {
			t.Errorf("%s: %d flows admit %s, want %d", when, got, old, want)
		}
	}
	expect("its subnet is node c's", 1)
	before := l.node.state(t)
	view := policyView()
	moved := view
	moved.Remotes = []clusternetwork.HostSubnet{subnet("b", "192.0.2.2", "10.128.2.0/23"), subnet("c", "192.0.2.3", "10.128.6.0/23"), subnet("d", "192.0.2.4", "10.128.4.0/23")}
	l.update(t, moved)
	expect("its subnet is node d's", 0)
	gone := view
	gone.Remotes = view.Remotes[:1]
	l.update(t, gone)
	expect("node c is gone", 0)
	l.update(t, view)
	expect("node c is back", 1)
	if after := l.node.state(t); after != before {
		t.Errorf("it was\n%s\nand is\n%s", before, after)
	}
	all := PolicyChange{Reset: true, Pods: map[policy.Key]*PolicyPod{}}
	for _, change := range []PolicyChange{denyAll(t), policyPod("server", web), remoteClient("c", "10.128.4.7")} {
		maps.Copy(all.Pods, change.Pods)
		if change.Policies != nil {
			all.Policies, all.Namespaces = change.Policies, change.Namespaces
		}
	}
	l.policies(t, all)
	expect("all objects are listed again", 1)
	l.update(t, moved)
	expect("its subnet is node d's, after all objects were listed again", 0)
	l = l.restartWith(t, all, view)
	expect("after a restart", 1)
}
