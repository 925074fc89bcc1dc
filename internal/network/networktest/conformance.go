package networktest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/attach/lifecycle"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/network"
	"weft.dev/weft/internal/placement"
)

// patience bounds every wait for a condition.
const patience = 60 * time.Second

// Subject is a network under test, on a node that outlives it.
type Subject struct {
	// Name is the network's name.
	Name string
	// At is the decision that places pods on it.
	At placement.Decision
	// BootID is the node's boot ID.
	BootID string
	// Start returns the network as a newly started agent creates it, on the same node as before. Everything that it starts ends with ctx. The
	// suite calls Run.
	Start func(ctx context.Context, t *testing.T, records network.Records) (network.Network, network.Runner)
	// Netns returns the path of a new network namespace for a pod.
	Netns func(t *testing.T) string
	// Connected fails the test unless the pod can (or cannot) exchange packets now. Nil: not checked.
	Connected func(t *testing.T, netns string, rec attach.Record, want bool)
}

// life is one run of an agent with the network.
type life struct {
	*lifecycle.Handler
	t       *testing.T
	subject *Subject
	store   *attach.Store
	network network.Network
	runner  network.Runner
	stop    func()
}

// RunConformance checks that a network does what attach/lifecycle relies on.
func RunConformance(t *testing.T, factory func(t *testing.T) Subject) {
	for name, test := range map[string]func(t *testing.T, s *Subject, dir string){
		"an attachment comes and goes":     comesAndGoes,
		"pods at once claim nothing twice": atOnce,
		"a restart keeps what is attached": restartKeeps,
		"what was under way is removed":    removesLeftovers,
		"an abandoned ADD leaves nothing":  abandoned,
		"former boots have nothing left":   formerBoot,
	} {
		t.Run(name, func(t *testing.T) {
			s := factory(t)
			test(t, &s, filepath.Join(t.TempDir(), "attachments"))
		})
	}
}

// begin starts a run of the agent with the records in dir. It waits until the network is ready.
func begin(t *testing.T, s *Subject, dir string) *life {
	t.Helper()
	l := resume(t, s, dir)
	wait(t, "the network is ready", func() error { return l.network.Ready() })
	select {
	case <-l.runner.HandedOver():
	case <-time.After(patience):
		t.Fatal("the network is ready and has not handed over its state")
	}
	return l
}

// resume is begin without the wait.
func resume(t *testing.T, s *Subject, dir string) *life {
	t.Helper()
	store, err := attach.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	l := &life{t: t, subject: s, store: store}
	l.Handler = lifecycle.New(store, lifecycle.Options{
		BootID: s.BootID, Default: func() (string, error) { return s.Name, nil }, Waiting: func() string { return "the test" },
		Place: func(context.Context, *cni.Request) (placement.Decision, error) { return s.At, nil },
	})
	ctx, cancel := context.WithCancel(context.Background())
	l.network, l.runner = s.Start(ctx, t, l.Records(s.Name))
	leave := l.Serve(s.Name, l.network, l.runner.HandedOver())
	var group sync.WaitGroup
	group.Go(func() { _ = l.Run(ctx) })
	group.Go(func() {
		if err := l.runner.Run(ctx); err != nil && ctx.Err() == nil {
			t.Errorf("Run: %v", err)
		}
	})
	l.stop = sync.OnceFunc(func() {
		cancel()
		group.Wait()
		leave()
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(l.stop)
	return l
}

func wait(t *testing.T, what string, condition func() error) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		err := condition()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: %v", what, err)
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-t.Context().Done():
			t.Fatal(t.Context().Err())
		}
	}
}

func request(command cni.Command, container, netns string) *cni.Request {
	return &cni.Request{
		Command: command, ContainerID: container, IfName: "eth0", Netns: netns,
		Args: cni.Args{PodNamespace: "default", PodName: container}, NetConf: &cni.NetConf{},
	}
}

func (l *life) add(container, netns string) *types100.Result {
	l.t.Helper()
	result, err := l.Add(l.t.Context(), request(cni.CommandAdd, container, netns))
	if err != nil {
		l.t.Fatalf("ADD of %s: %v", container, err)
	}
	if len(result.IPs) == 0 || len(result.Interfaces) == 0 {
		l.t.Errorf("ADD of %s: result without addresses or interfaces: %v", container, result)
	}
	return result
}

func (l *life) del(container, netns string) {
	l.t.Helper()
	if err := l.Del(l.t.Context(), request(cni.CommandDel, container, netns)); err != nil {
		l.t.Fatalf("DEL of %s: %v", container, err)
	}
}

func (l *life) rec(container string) attach.Record {
	l.t.Helper()
	rec, err := l.store.Get(attach.Key{ContainerID: container, IfName: "eth0"})
	if err != nil {
		l.t.Fatal(err)
	}
	return rec
}

func (l *life) check(container string) {
	l.t.Helper()
	if err := l.network.Check(l.t.Context(), l.rec(container)); err != nil {
		l.t.Errorf("CHECK of %s: %v", container, err)
	}
}

func (l *life) connected(netns string, rec attach.Record, want bool) {
	l.t.Helper()
	if l.subject.Connected != nil {
		l.subject.Connected(l.t, netns, rec, want)
	}
}

// empty waits until all records are removed.
func (l *life) empty() {
	l.t.Helper()
	wait(l.t, "records are removed", func() error {
		if list := l.store.List(); len(list) > 0 {
			return fmt.Errorf("%d records are left, one of %s", len(list), list[0].Key())
		}
		return nil
	})
}

func comesAndGoes(t *testing.T, s *Subject, dir string) {
	l := begin(t, s, dir)
	netns := s.Netns(t)
	first := l.add("one", netns)
	rec := l.rec("one")
	if network.KindOf(rec.Network) != s.Name || rec.State != attach.Attached {
		t.Errorf("record %+v", rec)
	}
	l.connected(netns, rec, true)
	l.check("one")
	if again := l.add("one", netns); again.IPs[0].Address.String() != first.IPs[0].Address.String() {
		t.Errorf("a repeated ADD gives %v, the first gave %v", again.IPs, first.IPs)
	}
	l.connected(netns, rec, true)
	l.del("one", netns)
	l.connected(netns, rec, false)
	l.empty()
	if err := l.network.Check(t.Context(), rec); err == nil {
		t.Error("CHECK of what was removed finds nothing missing")
	}
	if failed := l.network.Remove(t.Context(), []attach.Record{rec}); len(failed) > 0 {
		t.Errorf("removing what is gone: %v", failed)
	}
	l.add("one", s.Netns(t)) // in another sandbox's namespace
	l.check("one")
	l.del("one", "")
	l.empty()
}

func atOnce(t *testing.T, s *Subject, dir string) {
	l := begin(t, s, dir)
	const pods = 12
	var group sync.WaitGroup
	for i := range pods {
		netns := s.Netns(t)
		group.Go(func() {
			if _, err := l.Add(t.Context(), request(cni.CommandAdd, fmt.Sprint("pod", i), netns)); err != nil {
				t.Errorf("ADD: %v", err)
			}
		})
	}
	group.Wait()
	claims, addresses := map[string]bool{}, map[string]bool{}
	for _, rec := range l.store.List() {
		for _, claim := range rec.Claims {
			claims[claim] = true
		}
		for _, address := range rec.Addresses {
			addresses[rec.Network+" "+address.String()] = true
		}
		l.check(rec.ContainerID)
	}
	if len(addresses) < pods {
		t.Errorf("%d pods have %d addresses: %v", pods, len(addresses), slices.Sorted(maps.Keys(addresses)))
	}
	for i := range pods {
		group.Go(func() {
			if err := l.Del(t.Context(), request(cni.CommandDel, fmt.Sprint("pod", i), "")); err != nil {
				t.Errorf("DEL: %v", err)
			}
		})
	}
	group.Wait()
	l.empty()
}

func restartKeeps(t *testing.T, s *Subject, dir string) {
	l := begin(t, s, dir)
	stays, goes := s.Netns(t), s.Netns(t)
	first := l.add("stays", stays)
	l.add("goes", goes)
	kept := l.rec("stays")
	l.stop()
	l.connected(stays, kept, true)
	l = resume(t, s, dir)
	rec := l.rec("goes")
	l.del("goes", goes) // even before the network has handed over its state
	l.connected(goes, rec, false)
	wait(t, "the network is ready", func() error { return l.network.Ready() })
	l.check("stays")
	l.connected(stays, l.rec("stays"), true)
	if again := l.add("stays", stays); again.IPs[0].Address.String() != first.IPs[0].Address.String() {
		t.Errorf("ADD after a restart gives %v, before it gave %v", again.IPs, first.IPs)
	}
	l.del("stays", stays)
	l.empty()
}

func removesLeftovers(t *testing.T, s *Subject, dir string) {
	l := begin(t, s, dir)
	planned, closing := s.Netns(t), s.Netns(t)
	l.add("planned", planned)
	l.add("closing", closing)
	for container, state := range map[string]attach.State{"planned": attach.Planned, "closing": attach.Closing} {
		rec := l.rec(container)
		rec.State = state
		if err := l.store.Put(t.Context(), rec); err != nil {
			t.Fatal(err)
		}
	}
	recs := l.store.List()
	l.stop()
	l = begin(t, s, dir)
	l.empty()
	for _, rec := range recs {
		l.connected(rec.Netns, rec, false)
	}
}

func abandoned(t *testing.T, s *Subject, dir string) {
	l := begin(t, s, dir)
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // the runtime has gone away
	if _, err := l.Add(ctx, request(cni.CommandAdd, "gone", s.Netns(t))); err == nil {
		l.del("gone", "")
	}
	l.empty()
	if _, err := l.Add(t.Context(), request(cni.CommandAdd, "nowhere", "/run/netns/there-is-none")); err == nil {
		t.Error("ADD in a namespace that does not exist succeeds")
	}
	l.empty()
}

func formerBoot(t *testing.T, s *Subject, dir string) {
	l := begin(t, s, dir)
	netns := s.Netns(t)
	l.add("one", netns)
	rec := l.rec("one")
	l.del("one", netns)
	l.empty()
	l.stop()
	store, err := attach.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	rec.BootID, rec.State = "another-boot", attach.Attached
	if err := errors.Join(store.Put(t.Context(), rec), store.Close()); err != nil {
		t.Fatal(err)
	}
	begin(t, s, dir).empty()
}
