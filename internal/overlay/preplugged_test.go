package overlay

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/link/podlink"
	"weft.dev/weft/internal/overlay/host"
	"weft.dev/weft/internal/overlay/ports"
	"weft.dev/weft/internal/ovsdb"
	"weft.dev/weft/internal/reconcile"
)

const portsNetns = "/run/weft/cni/ports"

// prepluggedNode returns a node whose agents pre-plug ports, in an existing namespace.
func prepluggedNode(dir string, spare int) *node {
	n := newNode(dir)
	n.spare = spare
	n.pods.AddNamespace(portsNetns)
	return n
}

// prepluggedStart returns an agent with free pre-plugged ports.
func prepluggedStart(t *testing.T, spare int) *life {
	t.Helper()
	l := prepluggedNode(t.TempDir(), spare).begin(t)
	t.Cleanup(l.stop)
	l.update(t, sample())
	l.free(t, spare)
	return l
}

// free waits until this many ports are free, and none is being created or removed.
func (l *life) free(t tb, count int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d ports are free", count), func() bool {
		free, other := l.countPorts()
		return free == count && other == 0
	})
}

// countPorts returns how many pre-plugged ports are free, and how many are being created or removed.
func (l *life) countPorts() (free, unfinished int) {
	f, _, u := l.ports.Preplugged.List()
	return len(f), len(u)
}

// prepluggedPorts returns the names of pods' pairs, and checks that the switch has the same ports.
func (p programmed) prepluggedPorts(t tb) []string {
	t.Helper()
	links, err := p.at.pods.List(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	var pairs, ports []string
	for name := range links {
		pairs = append(pairs, name)
	}
	for name := range p.at.rows.Ports(host.Bridge) {
		if name != host.Tun && name != host.Tunnel {
			ports = append(ports, name)
		}
	}
	slices.Sort(pairs)
	slices.Sort(ports)
	if !slices.Equal(pairs, ports) {
		t.Errorf("links %v, ports %v", pairs, ports)
	}
	return pairs
}

// portRow returns the row of a port as the switch's database has it.
func portRow(t tb, n *node, name string) ovsdb.Port {
	t.Helper()
	rows, err := n.rows.Read(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for key, row := range rows {
		if port, ok := row.(*ovsdb.Port); ok && key.Name == name {
			return *port
		}
	}
	t.Fatalf("there is no port %s", name)
	return ovsdb.Port{}
}

// namesPod reports whether the row of an attachment's port names its pod, as OpenShift SDN's tools read it.
func namesPod(t tb, n *node, rec *attach.Record) bool {
	t.Helper()
	ids := portRow(t, n, rec.HostInterface).ExternalIDs
	return ids["sandbox"] == rec.ContainerID && ids["ip"] == rec.Addresses[0].Addr().String()
}

// A pod on a pre-plugged port changes nothing in the switch, neither on ADD nor on DEL: in the database only the port's external_ids, which
// name the pod as long as it is there.
func TestPrepluggedPorts(t *testing.T) {
	l := prepluggedStart(t, 4)
	ports := l.prepluggedPorts(t)
	if len(ports) != 4 {
		t.Fatalf("ports %v", ports)
	}
	l.node.rowEngine.refuse(func(change reconcile.Change[ovsdb.Key, ovsdb.Row]) error {
		for key, row := range change.Set {
			is, was := *row.(*ovsdb.Port), portRow(t, l.node, key.Name)
			if is.ExternalIDs, was.ExternalIDs = nil, nil; !is.Equal(&was) {
				t.Errorf("row %v, it was %v", row, &was)
			}
		}
		if len(change.Delete) > 0 {
			t.Errorf("deleted: %v", change.Delete)
		}
		return nil
	})
	for _, name := range []string{"a", "b", "a", "b", "a"} {
		req := l.request(name)
		result := l.add(t, req)
		l.whole(t, req)
		rec := l.record(t, req)
		if !l.ports.Preplugged.Has(rec.OFPort) || !slices.Contains(ports, rec.HostInterface) || result.Interfaces[0].Name != rec.HostInterface {
			t.Errorf("record %+v, result %v", rec, result.Interfaces)
		}
		if err := l.Check(context.Background(), req); err != nil {
			t.Errorf("CHECK: %v", err)
		}
		eventually(t, "the port's row names the pod", func() bool { return namesPod(t, l.node, &rec) })
		l.del(t, req)
		l.settled(t)
		l.free(t, 4)
		eventually(t, "the port's row names no pod", func() bool { return len(portRow(t, l.node, rec.HostInterface).ExternalIDs) == 1 })
	}
	if now := l.prepluggedPorts(t); !slices.Equal(now, ports) {
		t.Errorf("ports %v, it were %v", now, ports)
	}
}

// The port that has been free longest is taken next.
func TestPrepluggedPortsRotate(t *testing.T) {
	l := prepluggedStart(t, 4)
	var order []uint32
	for i := range 8 {
		req := l.request(fmt.Sprint("s", i))
		l.add(t, req)
		order = append(order, l.record(t, req).OFPort)
		l.del(t, req)
		l.settled(t)
		l.free(t, 4)
	}
	if !slices.Equal(order[:4], order[4:]) || slices.Contains(order[1:4], order[0]) {
		t.Errorf("ports were taken in the order %v", order)
	}
}

// Until the plugin has created the namespace, and when more pods are added at once than ports are free, pods get ports of their own.
func TestWithoutPrepluggedPorts(t *testing.T) {
	n := newNode(t.TempDir())
	n.spare = 2
	l := n.begin(t)
	t.Cleanup(l.stop)
	l.update(t, sample())
	before := l.node.state(t)
	first := l.request("first")
	l.add(t, first)
	l.whole(t, first)
	if l.ports.Preplugged.Has(l.record(t, first).OFPort) {
		t.Error("it is on a port that cannot be")
	}
	l.del(t, first)
	l.nothingLeft(t, before)
	n.pods.AddNamespace(portsNetns)
	second := l.request("second")
	l.add(t, second) // this ADD also starts another check of the namespace
	l.free(t, 2)
	var own, preplugged int
	for i := range 3 {
		req := l.request(fmt.Sprint("s", i))
		l.add(t, req)
		l.whole(t, req)
		if l.ports.Preplugged.Has(l.record(t, req).OFPort) {
			preplugged++
		} else {
			own++
		}
	}
	if preplugged == 0 {
		t.Errorf("%d pods on pre-plugged ports, %d on their own", preplugged, own)
	}
}

// A restart changes nothing: taken ports stay taken, and the others are free again, except one with an interface that no record names.
func TestPrepluggedPortsAfterARestart(t *testing.T) {
	l := prepluggedStart(t, 4)
	req := l.request("a")
	l.add(t, req)
	l.whole(t, req)
	state, ports, taken := l.node.state(t), l.prepluggedPorts(t), l.record(t, req).HostInterface
	next := l.restart(t)
	next.free(t, 3)
	if now := next.node.state(t); now != state {
		t.Errorf("the state differs:\n%s\nit was:\n%s", now, state)
	}
	next.whole(t, req)
	next.stop()

	strange := slices.DeleteFunc(slices.Clone(ports), func(name string) bool { return name == taken })[0]
	next.node.pods.AddNamespace("/run/netns/foreign")
	pair := podlink.Pair{HostName: strange, PodName: "eth0", Netns: "/run/netns/foreign", Preplugged: portsNetns, Owner: "attachment/foreign/eth0"}
	if _, err := next.node.pods.Create(context.Background(), pair); err != nil {
		t.Fatal(err)
	}
	last := next.node.begin(t)
	t.Cleanup(last.stop)
	last.update(t, sample())
	last.free(t, 2)
	if now := last.prepluggedPorts(t); slices.Contains(now, strange) || len(now) != 3 {
		t.Errorf("ports %v; %s is occupied", now, strange)
	}
}

// When the cluster's MTU changes, free ports get it at once, and a taken one is replaced once it is free.
func TestPrepluggedPortsOfAnotherMTU(t *testing.T) {
	l := prepluggedStart(t, 4)
	req := l.request("a")
	l.add(t, req)
	old := l.record(t, req).HostInterface
	view := sample()
	view.Cluster.MTU = 1400
	l.update(t, view)
	l.free(t, 4)
	found, err := l.node.pods.ListPreplugged(context.Background(), portsNetns)
	if err != nil {
		t.Fatal(err)
	}
	for name, listed := range found {
		if want := 1400; name != old && listed.MTU != want {
			t.Errorf("%s has MTU %d", name, listed.MTU)
		}
	}
	l.del(t, req)
	l.settled(t)
	l.free(t, 4)
	if slices.Contains(l.prepluggedPorts(t), old) {
		t.Errorf("%s is still there", old)
	}
}

// An unusable port is removed, and the pod gets a port of its own.
func TestPrepluggedPortThatFails(t *testing.T) {
	for name, why := range map[string]error{"occupied": podlink.ErrOccupied, "no macvlan": errors.New("operation not supported")} {
		t.Run(name, func(t *testing.T) {
			l := prepluggedStart(t, 2)
			broken := ""
			l.node.pods.onCreate(func() error {
				if broken == "" {
					broken = l.store.List()[0].HostInterface
					return fmt.Errorf("%w: %w", podlink.ErrUnusable, why)
				}
				return nil
			})
			req := l.request("a")
			l.add(t, req)
			l.whole(t, req)
			if rec := l.record(t, req); rec.HostInterface == broken {
				t.Errorf("it is on %s", broken)
			}
			l.del(t, req)
			l.settled(t)
			eventually(t, "the port is gone", func() bool { return !slices.Contains(l.prepluggedPorts(t), broken) })
		})
	}
}

// An interface that cannot be removed, because the pod's namespace cannot be entered, keeps its record after DEL: the removal is repeated, and
// no other pod gets the port. If the interface stays, the port is removed together with it.
func TestInterfaceOutOfReach(t *testing.T) {
	l := prepluggedStart(t, 2)
	req := l.request("a")
	l.add(t, req)
	rec := l.record(t, req)
	plugged := func() bool { // only this port: meanwhile spare ones are added, first their links and then their rows
		_, is := l.node.rows.Ports(host.Bridge)[rec.HostInterface]
		return is
	}
	var attempts atomic.Int32
	l.node.pods.onUnplug(func() error {
		attempts.Add(1)
		return fmt.Errorf("%w: entering %s: %w", podlink.ErrOccupied, rec.Netns, unix.EACCES)
	})
	l.del(t, req)
	eventually(t, "the removal is repeated", func() bool { return attempts.Load() > 2 })
	if left, err := l.store.Get(rec.Key()); err != nil || left.State != attach.Closing || !plugged() {
		t.Errorf("after DEL the record is %+v, and its port is plugged: %t", left, plugged())
	}
	other := l.request("b")
	l.add(t, other)
	if got := l.record(t, other).HostInterface; got == rec.HostInterface {
		t.Errorf("another pod is on %s", got)
	}
	l.node.ahead.Add(int64(time.Minute)) // nothing lingers on a port that long
	eventually(t, "the port is removed", func() bool { return !plugged() })
	l.settled(t)
	if _, err := l.store.Get(rec.Key()); err == nil {
		t.Error("the record is left")
	}
}

// After a failure that is the pod's own, the port is free again.
func TestPrepluggedPortAndAPodThatFails(t *testing.T) {
	l := prepluggedStart(t, 2)
	ports := l.prepluggedPorts(t)
	req := l.request("a")
	l.node.pods.RemoveNamespace(req.Netns)
	if _, err := l.Add(context.Background(), req); !errors.Is(err, link.ErrNoNamespace) {
		t.Fatalf("ADD: %v", err)
	}
	l.settled(t)
	l.free(t, 2)
	if now := l.prepluggedPorts(t); !slices.Equal(now, ports) {
		t.Errorf("ports %v, it were %v", now, ports)
	}
}

// Ports whose links another program has deleted do not make any pod's ADD fail, and are removed.
func TestPrepluggedPortsThatAreGone(t *testing.T) {
	l := prepluggedStart(t, 4)
	gone := l.prepluggedPorts(t)
	onPort := l.request("on-port")
	l.add(t, onPort)
	if err := l.node.pods.Fake.Delete(context.Background(), gone...); err != nil {
		t.Fatal(err)
	}
	req := l.request("a")
	l.add(t, req)
	l.whole(t, req)
	l.CheckHostEnds()
	for _, req := range []*cni.Request{onPort, req} {
		l.del(t, req)
	}
	l.settled(t)
	l.free(t, 4)
	for _, name := range l.prepluggedPorts(t) {
		if slices.Contains(gone, name) {
			t.Errorf("%s is there again", name)
		}
	}
}

// A port is not taken while the switch may hold state of its former pod.
func TestPrepluggedPortsRest(t *testing.T) {
	n := prepluggedNode(t.TempDir(), 1)
	n.rest = time.Hour
	l := n.begin(t)
	t.Cleanup(l.stop)
	l.update(t, sample())
	l.free(t, 1)
	req := l.request("a")
	l.add(t, req)
	first := l.record(t, req)
	if !l.ports.Preplugged.Has(first.OFPort) {
		t.Fatalf("record %+v", first)
	}
	l.free(t, 1) // another one was created
	l.del(t, req)
	l.settled(t)
	for i := range 3 {
		next := l.request(fmt.Sprint("s", i))
		l.add(t, next)
		if l.record(t, next).OFPort == first.OFPort {
			t.Errorf("%s is taken again", first.HostInterface)
		}
	}
}

// Ports that were created for another datapath, with other offloads, are not used any more.
func TestPrepluggedPortsOfAnotherDatapath(t *testing.T) {
	n := prepluggedNode(t.TempDir(), 2)
	before := podlink.Preplugged{Name: attach.PortName(7), MTU: 1450, HostGroup: host.PodGroup}
	if err := n.pods.CreatePreplugged(context.Background(), portsNetns, before); err != nil {
		t.Fatal(err)
	}
	l := n.begin(t)
	t.Cleanup(l.stop)
	l.update(t, sample())
	l.free(t, 2)
	if ports := l.prepluggedPorts(t); slices.Contains(ports, before.Name) {
		t.Errorf("ports %v", ports)
	}
}

// Of the ports that many pods have freed, all but a few are removed.
func TestSurplusOfPrepluggedPorts(t *testing.T) {
	l := prepluggedStart(t, 2)
	for i := range 20 {
		l.add(t, l.request(fmt.Sprint("s", i)))
		eventually(t, "ports are free", func() bool { free, other := l.countPorts(); return free > 0 && other == 0 })
	}
	for i := range 20 {
		l.del(t, l.request(fmt.Sprint("s", i)))
	}
	l.settled(t)
	eventually(t, "few ports are free", func() bool {
		free, other := l.countPorts()
		return other == 0 && free <= ports.Surplus*2 && free >= 2
	})
	if left := l.prepluggedPorts(t); len(left) > ports.Surplus*2 {
		t.Errorf("ports %v", left)
	}
}

// After any sequence of requests and restarts: no two pods have the same port, none leaks, and every port has its link.
func TestPrepluggedPortsProperty(t *testing.T) {
	base := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		n := prepluggedNode(tempDir(t, base), rapid.IntRange(0, 5).Draw(t, "spare"))
		l := n.begin(t)
		defer func() { l.stop() }()
		l.update(t, sample())
		there := map[string]bool{}
		for range rapid.IntRange(1, 25).Draw(t, "steps") {
			name := rapid.SampledFrom(strings.Fields("a b c d e f g")).Draw(t, "pod")
			req := l.request(name)
			switch rapid.SampledFrom([]string{"add", "add", "add", "del", "del", "restart"}).Draw(t, "step") {
			case "add":
				if !there[name] {
					l.add(t, req)
					there[name] = true
				}
			case "del":
				l.del(t, req)
				delete(there, name)
			case "restart":
				l.stop()
				l = n.begin(t)
				l.update(t, sample())
			}
			taken := map[uint32]string{}
			for _, rec := range l.store.List() {
				if other := taken[rec.OFPort]; other != "" {
					t.Fatalf("port %d is that of %s and %s", rec.OFPort, other, rec.Key())
				}
				taken[rec.OFPort] = rec.Key().String()
			}
		}
		for name := range there {
			l.whole(t, l.request(name))
			l.del(t, l.request(name))
		}
		l.settled(t)
		eventually(t, "the ports are at rest", func() bool {
			free, other := l.countPorts()
			return other == 0 && free >= (n.spare+1)/2 && free <= ports.Surplus*n.spare
		})
		free, taken, unfinished := l.ports.Preplugged.List()
		known := len(free) + len(taken) + len(unfinished)
		if now := l.prepluggedPorts(t); len(now) != known {
			t.Errorf("%d ports are known, there are %v", known, now)
		}
	})
}

// A failure of a pre-plugged port's row is reported for its pod, and blocks the removal of neither the pod nor the port.
func TestPrepluggedPortWhoseRowFails(t *testing.T) {
	l := prepluggedStart(t, 2)
	req := l.request("a")
	l.add(t, req)
	rec := l.record(t, req)
	l.node.rowEngine.refuse(func(change reconcile.Change[ovsdb.Key, ovsdb.Row]) error {
		for key := range change.Set {
			if key.Name == rec.HostInterface {
				return &ovsdb.PortError{Key: key, Reason: "no such device"}
			}
		}
		return nil
	})
	if err := l.node.pods.Fake.Delete(context.Background(), rec.HostInterface); err != nil {
		t.Fatal(err)
	}
	_, row := host.PrepluggedRow(rec.OFPort, host.UserOf(&rec))
	for key := range row {
		if err := l.node.rows.Commit(context.Background(), reconcile.Change[ovsdb.Key, ovsdb.Row]{Delete: row}); err != nil {
			t.Fatalf("%s: %v", key, err)
		}
	}
	l.engines.Rows.Resync()
	eventually(t, "the pod's port fails", func() bool { return l.engines.Rows.Failure(owner(keyOf(req))) != nil })
	l.del(t, req)
	l.settled(t)
	l.free(t, 1)
	if err := l.engines.Rows.Failure(owner(keyOf(req))); err != nil {
		t.Errorf("once the pod is gone: %v", err)
	}
	if slices.Contains(l.prepluggedPorts(t), rec.HostInterface) {
		t.Errorf("%s is there again", rec.HostInterface)
	}
}
