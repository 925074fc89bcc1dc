package enforcer

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/policy"
)

// PodOf returns the pod of an attachment.
func PodOf(rec *attach.Record) policy.Key {
	return policy.Key{Namespace: rec.PodNamespace, Name: rec.PodName}
}

// is reports whether the attachment belongs to this pod: of two successive pods with one name, it belongs to one only.
func (p *Pod) is(rec *attach.Record) bool {
	return p != nil && (rec.PodUID == "" || slices.Contains(p.UIDs, rec.PodUID))
}

// gone reports whether the pod is deleted or has ended.
func (p *Pod) gone() bool { return p == nil || p.Ended }

// feed sets the pod in the index to its current state. A pod of this node has the addresses that this node gave it. A pod of another node
// has the addresses of its status that are in that node's ranges.
func (x *state) feed(key policy.Key) {
	if x.lent {
		return
	}
	object := x.pods[key]
	if object == nil {
		x.stale[key] = struct{}{}
		x.follow(x.index.DeletePod(key))
		return
	}
	pod := object.Pod
	own := map[netip.Addr]struct{}{}
	for _, rec := range x.attached[key] {
		if object.is(&rec) {
			for _, address := range rec.Addresses {
				own[address.Addr()] = struct{}{}
			}
		}
	}
	if len(own) > 0 {
		pod.Node = x.node
	}
	if pod.Node == x.node {
		x.stale[key] = struct{}{}
		pod.Addresses = slices.SortedFunc(maps.Keys(own), netip.Addr.Compare)
	} else {
		pod.Addresses = x.placed(&pod)
	}
	x.follow(x.index.SetPod(pod))
}

// feedAttached adds to the index the pods that this node gave addresses to.
func (x *state) feedAttached() {
	for key := range x.attached {
		x.stale[key] = struct{}{}
		x.feed(key)
	}
}

// Attach notes an attachment that is open or about to be opened. The caller holds the lock.
func (x *state) Attach(rec *attach.Record) {
	key := PodOf(rec)
	if x.attached[key] == nil {
		x.attached[key] = map[attach.Key]attach.Record{}
	}
	x.attached[key][rec.Key()] = *rec
	x.feed(key)
}

// Detach notes that an attachment is closed. The caller holds the lock, and calls HandOver after it has detached all.
func (e *Enforcer) Detach(rec *attach.Record) {
	key := PodOf(rec)
	delete(e.attached[key], rec.Key())
	if len(e.attached[key]) == 0 {
		delete(e.attached, key)
	}
	e.feed(key)
	delete(e.shown, rec.Key())
	if e.enforcing && e.compiler != nil {
		e.closed = append(e.closed, *rec)
	}
}

// Attached returns the number of pods that have open attachments. It takes the lock.
func (e *Enforcer) Attached() int {
	e.lock.Lock()
	defer e.lock.Unlock()
	return len(e.attached)
}

// decide returns the decision about an attachment.
func (x *state) decide(rec *attach.Record) Decision {
	key := PodOf(rec)
	if x.lent || !x.pods[key].is(rec) {
		return Decision{}
	}
	isolation, known := x.index.Isolation(key)
	d := Decision{Known: known, Isolation: isolation}
	if x.perPolicy && known {
		var names strings.Builder
		for _, name := range x.index.Policies(key) {
			names.WriteString(name.String())
			names.WriteByte(' ')
		}
		d.Policies = names.String()
	}
	return d
}

// Show returns the decision about an attachment, for a fragment that the caller is about to hand over. The caller holds the lock.
func (x *state) Show(rec *attach.Record) Decision {
	d := x.decide(rec)
	x.shown[rec.Key()] = d
	return d
}

// Hide notes that the fragments of these attachments, or of all without keys, have no policies. The caller holds the lock.
func (x *state) Hide(keys ...attach.Key) {
	for _, key := range keys {
		delete(x.shown, key)
	}
}

// Place sets the pod ranges of other nodes, and updates the pods of nodes whose ranges changed in the index. A pod's status is written by
// its node and may outlive the node: of a remote pod's addresses, only those in the ranges of its node count. The caller holds the lock.
func (e *Enforcer) Place(ranges map[string][]netip.Prefix) {
	was := e.ranges
	e.ranges = ranges
	for node, pods := range e.byNode {
		if slices.Equal(was[node], ranges[node]) {
			continue
		}
		for key := range pods {
			e.feed(key)
		}
	}
}

// placed returns the addresses of a remote pod that are in the ranges of its node, and that the node may give to a pod.
func (x *state) placed(pod *policy.Pod) []netip.Addr {
	var addresses []netip.Addr
	for _, address := range pod.Addresses {
		if slices.ContainsFunc(x.ranges[pod.Node], func(subnet netip.Prefix) bool { return forPods(subnet, address) }) {
			addresses = append(addresses, address)
		}
	}
	return addresses
}

// forPods reports whether a node may give an address of its subnet to a pod. It may not give the first address, which is the network's,
// the second, which is the gateway's, and the last one of IPv4, which is the broadcast address.
func forPods(subnet netip.Prefix, address netip.Addr) bool {
	first := subnet.Addr()
	return subnet.Contains(address) && address != first && address != first.Next() && (address.Is6() || subnet.Contains(address.Next()))
}

// remember stores a pod object, nil if it is deleted, and updates the pods by node.
func (x *state) remember(key policy.Key, pod *Pod) {
	if was := x.pods[key]; was != nil {
		delete(x.byNode[was.Node], key)
		if len(x.byNode[was.Node]) == 0 {
			delete(x.byNode, was.Node)
		}
	}
	if pod == nil {
		delete(x.pods, key)
		return
	}
	x.pods[key] = pod
	if x.byNode[pod.Node] == nil {
		x.byNode[pod.Node] = map[policy.Key]struct{}{}
	}
	x.byNode[pod.Node][key] = struct{}{}
}

// SetNodes sets the nodes and their addresses, as pods of the namespace that represents them. The caller holds the lock.
func (x *state) SetNodes(nodes map[policy.Key][]netip.Addr) {
	for key := range x.nodes {
		if _, still := nodes[key]; !still {
			x.follow(x.index.DeletePod(key))
		}
	}
	for key, addresses := range nodes {
		x.follow(x.index.SetPod(policy.Pod{Key: key, Addresses: addresses, IsNode: true}))
	}
	x.nodes = nodes
}
