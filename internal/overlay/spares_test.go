package overlay

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/overlay/host"
)

// ahead returns a serving life on a node with so many spare ports.
func ahead(t *testing.T, spares int) *life {
	t.Helper()
	n := newNode(t.TempDir())
	n.spares = spares
	l := n.begin(t)
	t.Cleanup(l.stop)
	l.update(t, sample())
	l.settled(t)
	return l
}

// spare lists the spare ports of the node by the rows' owners, and checks that each is whole and closed.
func (l *life) spare(t tb) []string {
	t.Helper()
	rows, err := l.node.rows.Read(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	flows := l.node.flows.String()
	links, _ := l.node.pods.List(context.Background())
	names := []string{}
	for key, row := range rows {
		if !strings.Contains(row.String(), `"`+link.SpareOwner(key.Name)+`"`) {
			continue
		}
		names = append(names, key.Name)
		ofport, ok := attach.PortOf(key.Name)
		if !ok || l.node.rows.Ports(host.Bridge)[key.Name] != int(ofport) || links[key.Name] != link.SpareOwner(key.Name) {
			t.Errorf("spare %s: ofport %d, links %v", key.Name, l.node.rows.Ports(host.Bridge)[key.Name], links)
		}
		if strings.Contains(flows, fmt.Sprintf("in_port=%d ", ofport)) || strings.Contains(flows, fmt.Sprintf("in_port=%d,", ofport)) {
			t.Errorf("spare %s has flows:\n%s", key.Name, flows)
		}
	}
	slices.Sort(names)
	return names
}

// A pod takes a port that is there, without a word to the database; afterwards its row has its name, and there are as many
// spares as before. A restart changes nothing of it.
func TestSparesAreTaken(t *testing.T) {
	l := ahead(t, 4)
	first := l.spare(t)
	if len(first) != 4 {
		t.Fatalf("spares %v", first)
	}
	transactions := l.node.rows.Transactions()
	l.spares.mu.Lock()
	l.spares.lull = time.Hour
	l.spares.mu.Unlock()
	req := l.request("s1")
	if _, err := l.Add(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	l.whole(t, req)
	if now := l.node.rows.Transactions(); now != transactions {
		t.Errorf("%d transactions of the database, were %d", now, transactions)
	}
	l = l.restart(t) // before the port had its name
	l.settled(t)
	l.whole(t, req)
	if rows := lines(must(l.node.rows.Read(t.Context()))(t)); !strings.Contains(rows, `"attachment/s1/eth0"`) {
		t.Errorf("no row has the pod's name:\n%s", rows)
	}
	if now := l.spare(t); len(now) != 4 || !slices.Contains(now, first[1]) {
		t.Errorf("spares %v, were %v", now, first)
	}
	state, commits := l.node.state(t), l.node.commits()
	l = l.restart(t)
	l.settled(t)
	if now := l.node.commits(); now != commits {
		t.Errorf("a restart commits %v, were %v", now, commits)
	}
	if now := l.node.state(t); now != state {
		t.Errorf("state\n%s\nwas\n%s", now, state)
	}
	l.del(t, req)
	l.settled(t)
	if now := l.spare(t); len(now) != 4 {
		t.Errorf("spares %v", now)
	}
}

func must[T any](value T, err error) func(tb) T {
	return func(t tb) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

// More pods at once than there are spares all get a port.
func TestSparesBurst(t *testing.T) {
	l := ahead(t, 4)
	var all sync.WaitGroup
	for i := range 48 {
		all.Go(func() {
			if _, err := l.Add(context.Background(), l.request(fmt.Sprint("s", i))); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	l.settled(t)
	for i := range 48 {
		l.whole(t, l.request(fmt.Sprint("s", i)))
	}
	if now := l.spare(t); len(now) != 4 {
		t.Errorf("spares %v", now)
	}
}

// Spares that somebody damages are made anew: at once for who takes one, and when the agent is told.
func TestSparesDamaged(t *testing.T) {
	l := ahead(t, 4)
	names := l.spare(t)
	if err := l.node.pods.Delete(t.Context(), names...); err != nil {
		t.Fatal(err)
	}
	req := l.request("s1")
	l.add(t, req)
	l.whole(t, req)
	names = l.spare(t)
	if err := l.node.pods.Delete(t.Context(), names[0]); err != nil {
		t.Fatal(err)
	}
	l.CheckSpares()
	l.settled(t)
	if now := l.spare(t); len(now) != 4 || slices.Contains(now, names[0]) {
		t.Errorf("spares %v, were %v", now, names)
	}
}

// Another MTU makes other spares; another number of them takes the surplus away.
func TestSparesChange(t *testing.T) {
	l := ahead(t, 4)
	view := sample()
	view.Cluster.MTU = 1400
	l.update(t, view)
	l.settled(t)
	for _, name := range l.spare(t) {
		if pair, _ := l.node.pods.Pair(name); pair.MTU != 1400 {
			t.Errorf("spare %s has the MTU %d", name, pair.MTU)
		}
	}
	l.node.spares = 2
	l = l.restart(t)
	l.settled(t)
	if now := l.spare(t); len(now) != 2 {
		t.Errorf("spares %v", now)
	}
	l.node.spares = 0
	l = l.restart(t)
	l.settled(t)
	if now := l.spare(t); len(now) != 0 {
		t.Errorf("spares %v", now)
	}
}

// An agent that dies at any moment leaves no port that the next does not find: each is a pod's or a spare.
func TestSparesCrash(t *testing.T) {
	n := newNode(t.TempDir())
	n.spares = 3
	l := n.begin(t)
	l.update(t, sample())
	c := &crash{open: map[string]*cni.Request{}}
	for round := range 12 {
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for i := range 6 {
			all.Go(func() { c.pod(ctx, l, fmt.Sprint("r", round, "s", i)) })
		}
		time.Sleep(time.Duration(rand.IntN(int(30 * time.Millisecond)))) // the moment is the point
		l.stop()
		cancel()
		all.Wait()
		l = n.begin(t)
		l.update(t, sample())
		gc := &cni.Request{NetConf: &cni.NetConf{}}
		for name := range c.open {
			gc.NetConf.ValidAttachments = append(gc.NetConf.ValidAttachments, cni.Attachment{ContainerID: name, IfName: "eth0"})
		}
		if err := l.GC(t.Context(), gc); err != nil {
			t.Fatal(err)
		}
		l.settled(t)
		for _, req := range c.open {
			l.whole(t, req)
		}
		spares := l.spare(t)
		links, _ := n.pods.List(t.Context())
		if ports := n.rows.Ports(host.Bridge); len(spares) != 3 || len(links) != len(c.open)+3 || len(ports) != len(c.open)+5 {
			t.Fatalf("round %d: %d pods, spares %v, links %v, ports %v", round, len(c.open), spares, links, ports)
		}
	}
	l.stop()
}
