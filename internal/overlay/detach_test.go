package overlay

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/link/podlink"
	"weft.dev/weft/internal/overlay/host"
	"weft.dev/weft/internal/reconcile"
)

func unavailable() error { return fmt.Errorf("no answer: %w", reconcile.ErrUnavailable) }

func TestDel(t *testing.T) {
	l := start(t)
	before := l.node.state(t)
	req := l.request("s1")
	l.del(t, req) // before there is anything
	l.add(t, req)
	l.del(t, req)
	l.del(t, req)
	l.nothingLeft(t, before)
	l.del(t, req)
	l.add(t, req)
	l.node.pods.RemoveNamespace(req.Netns) // the sandbox was deleted, and its links with it
	gone := *req
	gone.Netns = ""
	l.del(t, &gone)
	l.nothingLeft(t, before)
}

func TestDelBeforeTheNetworkIsKnown(t *testing.T) {
	n := newNode(t.TempDir())
	l := n.begin(t)
	l.update(t, sample())
	before := n.state(t)
	req := l.request("s1")
	l.add(t, req)
	l.stop()
	l = n.begin(t)
	defer l.stop()
	if _, err := l.Add(t.Context(), req); !codeIs(err, cni.CodeTryAgainLater) {
		t.Errorf("ADD: %v", err)
	}
	for range 3 { // none waits for the engines or for another DEL
		l.del(t, req)
	}
	if rec := l.record(t, req); rec.State != attach.Closing {
		t.Errorf("state %s", rec.State)
	}
	l.update(t, sample())
	l.nothingLeft(t, before)
}

// On a full disk nothing can be written, but attachments can still be deleted.
func TestDelOnAFullDisk(t *testing.T) {
	l := start(t)
	before := l.node.state(t)
	req := l.request("s1")
	l.add(t, req)
	// Directories at the paths of the store's temporary files make its writes fail.
	for n := range 100 {
		if err := os.Mkdir(filepath.Join(l.node.dir, fmt.Sprintf(".tmp-%d", n)), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := l.Add(t.Context(), l.request("s2")); !codeIs(err, cni.CodeIO) {
		t.Errorf("ADD: %v", err)
	}
	l.del(t, req)
	l.nothingLeft(t, before)
	l.del(t, req)
}

func TestDelDuringAdd(t *testing.T) {
	l := start(t)
	before := l.node.state(t)
	req := l.request("s1")
	reached, release := make(chan struct{}), make(chan struct{})
	l.node.pods.onCreate(func() error {
		close(reached)
		<-release
		return nil
	})
	ctx, cancel := context.WithCancel(t.Context())
	added, deleted := make(chan error, 1), make(chan error, 1)
	go func() { _, err := l.Add(ctx, req); added <- err }()
	<-reached
	l.node.pods.onCreate(nil)
	cancel() // the runtime has given up, and sends its DEL
	go func() { deleted <- l.Del(context.Background(), req) }()
	impatient, stop := context.WithCancel(t.Context())
	stop()
	if err := l.Del(impatient, req); !codeIs(err, cni.CodeTryAgainLater) {
		t.Errorf("a DEL that gives up: %v", err)
	}
	close(release)
	if err := <-added; err == nil {
		t.Error("an ADD that was given up on succeeded")
	}
	if err := <-deleted; err != nil {
		t.Error(err)
	}
	l.nothingLeft(t, before)
}

// While the switch is unreachable a DEL succeeds, and the address stays taken: the port may still be open.
func TestDelWithTheSwitchAway(t *testing.T) {
	l := newNode(t.TempDir()).begin(t)
	defer l.stop()
	l.update(t, small())
	before := l.node.state(t)
	for i := range 5 {
		l.add(t, l.request(fmt.Sprint("s", i)))
	}
	open := l.node.flows.String()
	l.node.flowEngine.fail(unavailable())
	req := l.request("s1")
	l.del(t, req)
	l.del(t, req)
	if l.node.flows.String() != open {
		t.Fatal("the test's switch is not away")
	}
	rec := l.record(t, req)
	if _, held := l.store.InUse().Addresses[NetworkName][rec.Addresses[0].Addr()]; rec.State != attach.Closing || !held {
		t.Errorf("record %+v", rec)
	}
	if _, err := l.Add(t.Context(), l.request("more")); err == nil {
		t.Error("an address was given out whose flows still exist")
	}
	l.node.flowEngine.fail(nil)
	l.settled(t)
	if result := l.add(t, l.request("more")); result.IPs[0].Address.IP.String() != rec.Addresses[0].Addr().String() {
		t.Errorf("address %v, want %s", result.IPs[0].Address, rec.Addresses[0])
	}
	for _, name := range []string{"s0", "s2", "s3", "s4", "more"} {
		l.del(t, l.request(name))
	}
	l.nothingLeft(t, before)
}

// A link that cannot be removed keeps its address, and does not block the removal of other pods.
func TestOneThatCannotBeRemoved(t *testing.T) {
	l := start(t)
	before := l.node.state(t)
	stuck, other := l.request("stuck"), l.request("other")
	l.add(t, stuck)
	l.add(t, other)
	clear := l.node.obstruct(t, keyOf(stuck))
	if err := l.Del(t.Context(), stuck); !codeIs(err, cni.CodeIO) {
		t.Errorf("with the disk broken: %v", err)
	}
	clear()
	if err := l.store.Put(t.Context(), l.record(t, stuck)); err != nil {
		t.Fatal(err)
	}
	l.node.pods.onDelete(func() error { return errBroken })
	l.del(t, stuck)
	eventually(t, "the port is gone", func() bool {
		return l.node.rows.Ports(host.Bridge)[l.record(t, stuck).HostInterface] == 0
	})
	l.node.pods.onDelete(nil)
	l.del(t, other)
	l.nothingLeft(t, before)
}

func TestGC(t *testing.T) {
	l := start(t)
	keep := l.request("keep")
	l.add(t, keep)
	alone := l.node.state(t)
	for i := range 10 {
		l.add(t, l.request(fmt.Sprint("s", i)))
	}
	req := &cni.Request{NetConf: &cni.NetConf{ValidAttachments: []cni.Attachment{
		{ContainerID: "keep", IfName: "eth0"}, {ContainerID: "unknown", IfName: "eth0"},
	}}}
	for range 2 {
		if err := l.GC(t.Context(), req); err != nil {
			t.Fatal(err)
		}
	}
	l.settled(t)
	l.whole(t, keep)
	if now := l.node.state(t); now != alone {
		t.Errorf("state after GC:\n%s", now)
	}
	if n := len(l.store.List()); n != 1 {
		t.Errorf("%d records", n)
	}
}

func TestCheck(t *testing.T) {
	prev := func(address string) string {
		return `{"cniVersion":"1.0.0","interfaces":[{"name":"eth0","sandbox":"/run/netns/s1"}],"ips":[{"address":"` + address + `"}]}`
	}
	for name, c := range map[string]struct {
		damage func(l *life, req *cni.Request, rec attach.Record)
		code   cni.Code
		words  string
	}{
		"not there": {code: cni.CodeUnknownContainer, damage: func(l *life, req *cni.Request, _ attach.Record) {
			l.del(t, req)
		}},
		"link gone": {words: "does not exist", damage: func(l *life, _ *cni.Request, rec attach.Record) {
			_ = l.node.pods.Delete(context.Background(), rec.HostInterface)
		}},
		"namespace gone": {code: cni.CodeInvalidNetns, damage: func(l *life, req *cni.Request, _ attach.Record) {
			l.node.pods.RemoveNamespace(req.Netns)
		}},
		"other namespace": {words: "not in", damage: func(_ *life, req *cni.Request, _ attach.Record) {
			req.Netns = "/run/netns/other"
		}},
		"mtu": {words: "pod default/pod-s1, interface eth0 with MTU 1450: host end weft-p3: mtu is 1400, not 1450", damage: func(l *life, _ *cni.Request, rec attach.Record) {
			l.node.pods.Alter(rec.HostInterface, func(p *podlink.Pair) { p.MTU = 1400 })
		}},
		"address": {words: "10.128.0.2", damage: func(l *life, _ *cni.Request, rec attach.Record) {
			l.node.pods.Alter(rec.HostInterface, func(p *podlink.Pair) { p.PodAddresses = nil })
		}},
		"route": {words: "route", damage: func(l *life, _ *cni.Request, rec attach.Record) {
			l.node.pods.Alter(rec.HostInterface, func(p *podlink.Pair) { p.PodRoutes = p.PodRoutes[1:] })
		}},
		"port": {words: "gone from here", damage: func(l *life, _ *cni.Request, rec attach.Record) {
			l.node.rows.Refuse(rec.HostInterface, "gone from here")
			_, _ = l.engines.Rows.Verify(context.Background())
		}},
		"flows": {words: errBroken.Error(), damage: func(l *life, _ *cni.Request, _ attach.Record) {
			l.node.flows.Restart()
			l.node.flowEngine.before(func() { l.node.flowEngine.fail(errBroken) })
			_, _ = l.engines.Flows.Verify(context.Background())
		}},
		"another result": {words: "lacks address", damage: func(_ *life, req *cni.Request, _ attach.Record) {
			req.NetConf.RawPrevResult = []byte(prev("10.128.0.77/23"))
		}},
		"address outside the subnet": {words: "10.128.0.2", damage: func(l *life, _ *cni.Request, _ attach.Record) {
			view := sample()
			view.Local = subnet("a", "192.0.2.1", "10.128.8.0/23")
			l.update(t, view)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			l := start(t)
			req := l.request("s1")
			l.add(t, req)
			req.NetConf.RawPrevResult = []byte(prev("10.128.0.2/23"))
			if err := l.Check(t.Context(), req); err != nil {
				t.Fatalf("nothing is damaged: %v", err)
			}
			c.damage(l, req, l.record(t, req))
			err := l.Check(t.Context(), req)
			if err == nil || c.code != 0 && !codeIs(err, c.code) || !strings.Contains(err.Error(), c.words) {
				t.Errorf("error %v, want code %d and %q", err, c.code, c.words)
			}
		})
	}
}

func TestStatus(t *testing.T) {
	l := newNode(t.TempDir()).begin(t)
	defer l.stop()
	l.Waiting("waiting for the test")
	if err := l.Status(t.Context(), nil); !codeIs(err, cni.CodeNotAvailable) || !strings.Contains(err.Error(), "waiting for the test") {
		t.Errorf("before: %v", err)
	}
	l.update(t, sample())
	if err := l.Status(t.Context(), nil); err != nil {
		t.Error(err)
	}
	l.node.rows.Refuse(host.Tunnel, "no room")
	_, _ = l.engines.Rows.Verify(t.Context())
	if err := l.Status(t.Context(), nil); !codeIs(err, cni.CodeLimitedConnectivity) {
		t.Errorf("with the tunnel broken: %v", err)
	}
	l.node.rows.Refuse(host.Tunnel, "")
	if _, err := l.engines.Rows.Verify(t.Context()); err != nil {
		t.Error(err)
	}
	if err := l.Status(t.Context(), nil); err != nil {
		t.Error(err)
	}
}

// Concurrent ADD, DEL and GC of the same few sandboxes end in the state after the last DEL.
func TestConcurrentRequestsForOneSandbox(t *testing.T) {
	l := start(t)
	before := l.node.state(t)
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			req := l.request(fmt.Sprint("s", i%2))
			for range 10 {
				if _, err := l.Add(context.Background(), req); err != nil {
					t.Error(err)
				}
				if err := l.Del(context.Background(), req); err != nil {
					t.Error(err)
				}
				if err := l.Check(context.Background(), req); err != nil && errors.Is(err, errBroken) {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	l.nothingLeft(t, before)
}
