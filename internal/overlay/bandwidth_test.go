package overlay

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/link/podlink"
)

// limit returns a request for a pod with these limits, as runtimes pass them.
func (r requests) limit(name, bandwidth string) *cni.Request {
	req := r.request(name)
	req.NetConf.RuntimeConfig.Bandwidth = json.RawMessage(bandwidth)
	return req
}

const tenAndFive = `{"ingressRate":10000000,"ingressBurst":4294967295,"egressRate":5000000,"egressBurst":4294967295}`

// shapes returns the shaping of pods' ports.
func (p programmed) shapes(t tb) map[string]podlink.Shape {
	t.Helper()
	have, err := p.at.pods.Shapes(t.(*testing.T).Context(), portsNetns)
	if err != nil {
		t.Fatal(err)
	}
	return have
}

func TestBandwidth(t *testing.T) {
	l := prepluggedStart(t, 2)
	plain := l.request("plain")
	l.add(t, plain)
	req := l.limit("a", tenAndFive)
	l.add(t, req)
	rec := l.record(t, req)
	if want := (cni.Bandwidth{Ingress: 10_000_000, Egress: 5_000_000}); rec.Bandwidth != want || !l.ports.Preplugged.Has(rec.OFPort) {
		t.Errorf("recorded %+v, port %d", rec.Bandwidth, rec.OFPort)
	}
	have := l.shapes(t)
	shape := have[rec.HostInterface]
	if len(have) != 1 || shape.Receive.Rate != 1_250_000 || shape.Send.Rate != 625_000 {
		t.Errorf("shaped: %v", have)
	}
	l.whole(t, req)

	next := l.restart(t)
	next.whole(t, req)
	if now := next.shapes(t); now[rec.HostInterface] != shape {
		t.Errorf("after a restart: %v", now)
	}
	next.del(t, req)
	eventually(t, "nothing is shaped", func() bool { return len(next.shapes(t)) == 0 })
	next.whole(t, plain)
}

// Shaping that another program changed is restored when ports are checked, and after a restart. A pod without limits gets none.
func TestBandwidthByHand(t *testing.T) {
	l := prepluggedStart(t, 2)
	req, plain := l.limit("a", tenAndFive), l.request("plain")
	l.add(t, req)
	l.add(t, plain)
	name, bare := l.record(t, req).HostInterface, l.record(t, plain).HostInterface
	want := l.shapes(t)[name]
	for _, damaged := range []podlink.Shape{{}, {Receive: want.Receive}, {Receive: want.Send, Send: want.Receive}} {
		if err := l.node.pods.Reshape(t.Context(), portsNetns, name, damaged); err != nil {
			t.Fatal(err)
		}
		l.CheckHostEnds()
		eventually(t, "it is shaped as it was", func() bool { return l.shapes(t)[name] == want })
	}
	l.stop()
	if err := l.node.pods.Reshape(t.Context(), portsNetns, name, podlink.Shape{}); err != nil {
		t.Fatal(err)
	}
	next := l.restart(t)
	eventually(t, "it is shaped after a restart", func() bool { return next.shapes(t)[name] == want })
	if _, shaped := next.shapes(t)[bare]; shaped {
		t.Error("a pod without limits is shaped")
	}
	next.whole(t, req)
}

// A pod with limits gets a pre-plugged port even if none is kept free, and the port is removed with the pod. If it cannot be created, the
// ADD of the pod fails, and the ADDs of other pods succeed.
func TestBandwidthWithoutReadyPorts(t *testing.T) {
	n := newNode(t.TempDir())
	n.spare = 0
	l := n.begin(t)
	t.Cleanup(l.stop)
	l.update(t, sample())
	before := n.state(t)
	req := l.limit("a", tenAndFive)
	if _, err := l.Add(t.Context(), req); !codeIs(err, cni.CodeTryAgainLater) || !strings.Contains(err.Error(), portsNetns) || !strings.Contains(err.Error(), "pod default/pod-a") {
		t.Errorf("without a namespace of ports: %v", err)
	}
	l.nothingLeft(t, before)
	n.pods.AddNamespace(portsNetns)
	plain := l.request("plain")
	l.add(t, plain)
	l.add(t, req)
	l.whole(t, req)
	rec := l.record(t, req)
	if !l.ports.Preplugged.Has(rec.OFPort) || l.ports.Preplugged.Has(l.record(t, plain).OFPort) || len(l.shapes(t)) != 1 {
		t.Errorf("port %d, shapes %v", rec.OFPort, l.shapes(t))
	}
	l.del(t, plain)
	l.del(t, req)
	l.free(t, 0)
	eventually(t, "the port is gone", func() bool { return !l.ports.Preplugged.Has(rec.OFPort) && len(l.shapes(t)) == 0 })
	l.nothingLeft(t, before)
}

// There are more pods with limits than free ports: each gets its own pre-plugged port.
func TestBandwidthOfACrowd(t *testing.T) {
	l := prepluggedStart(t, 1)
	seen := map[uint32]bool{}
	for _, name := range []string{"a", "b", "c", "d"} {
		req := l.limit(name, tenAndFive)
		l.add(t, req)
		rec := l.record(t, req)
		if !l.ports.Preplugged.Has(rec.OFPort) || seen[rec.OFPort] {
			t.Errorf("%s: port %d", name, rec.OFPort)
		}
		seen[rec.OFPort] = true
	}
	if have := l.shapes(t); len(have) != len(seen) {
		t.Errorf("shaped: %v", have)
	}
}

// An unusable port is replaced by another pre-plugged one.
func TestBandwidthOnAPortThatFails(t *testing.T) {
	l := prepluggedStart(t, 2)
	failed := false
	l.node.pods.onCreate(func() error {
		if failed {
			return nil
		}
		failed = true
		return podlink.ErrUnusable
	})
	req := l.limit("a", tenAndFive)
	l.add(t, req)
	if rec := l.record(t, req); !failed || !l.ports.Preplugged.Has(rec.OFPort) || len(l.shapes(t)) != 1 {
		t.Errorf("port %d, shapes %v", rec.OFPort, l.shapes(t))
	}
	l.whole(t, req)
}

// A port with shaping left from before the restart is not used again.
func TestBandwidthLeftBehind(t *testing.T) {
	l := prepluggedStart(t, 2)
	ports := l.prepluggedPorts(t)
	l.stop()
	if err := l.node.pods.Reshape(t.Context(), portsNetns, ports[0], podlink.Shape{Send: podlink.Shaper{Rate: 1000}}); err != nil {
		t.Fatal(err)
	}
	next := l.node.begin(t)
	t.Cleanup(next.stop)
	next.update(t, sample())
	eventually(t, "nothing is shaped", func() bool { return len(next.shapes(t)) == 0 })
}

func TestBandwidthRefused(t *testing.T) {
	l := prepluggedStart(t, 1)
	before := l.node.state(t)
	for _, wrong := range []string{`{"ingressRate":999}`, `{"egressRate":-1}`, `{"ingressRate":10000000,"egressRate":"5M"}`} {
		req := l.limit("a", wrong)
		_, err := l.Add(t.Context(), req)
		if !codeIs(err, cni.CodeInvalidConfig) || !strings.Contains(err.Error(), "pod default/pod-a") || !strings.Contains(err.Error(), "gress-bandwidth") {
			t.Errorf("%s: %v", wrong, err)
		}
		if _, err := l.store.Get(keyOf(req)); !errors.Is(err, attach.ErrNotFound) {
			t.Errorf("%s: a record: %v", wrong, err)
		}
		l.del(t, req)
	}
	if now := l.node.state(t); now != before {
		t.Errorf("left:\n%s\nit was:\n%s", now, before)
	}
}
