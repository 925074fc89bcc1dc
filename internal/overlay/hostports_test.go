package overlay

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/nft"
	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/reconcile"
)

// kernel records which connections were to be flushed.
type kernel struct {
	mu       sync.Mutex
	reported []string
	err      error
}

func (k *kernel) FlushTo(_ uint8, ports ...netip.AddrPort) error { return k.note(fmt.Sprint(ports)) }

func (k *kernel) FlushTranslatedTo(pods ...netip.Addr) error {
	return k.note(strings.Trim(fmt.Sprint(pods), "[]"))
}

func (k *kernel) note(what string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.reported = append(k.reported, what)
	return k.err
}

func (k *kernel) fail(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.err = err
}

// flushes returns the recorded flushes, and clears them.
func (k *kernel) flushes() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	reported := k.reported
	k.reported = nil
	return reported
}

// publish returns a request for a sandbox whose pod has host ports.
func (r requests) publish(name string, mappings ...cni.PortMapping) *cni.Request {
	req := r.request(name)
	req.NetConf.RuntimeConfig.PortMappings = mappings
	return req
}

// reserved reserves 9/udp.
func reserved(port cni.HostPort) string {
	if port.Overlaps(cni.HostPort{Port: 9, Protocol: "udp"}) {
		return "another program"
	}
	return ""
}

func mapping(port int) cni.PortMapping {
	return cni.PortMapping{HostPort: port, ContainerPort: 80, Protocol: "udp"}
}

// published returns the host ports in the node's rules.
func (n *node) published(t tb) []string {
	t.Helper()
	rules, err := n.rules.Read(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, item := range rules {
		if e, ok := item.(*nft.Element); ok && strings.HasPrefix(e.Set, "hostports") {
			all = append(all, strings.Join(e.Match, " . ")+" : "+strings.Join(e.Value, " . "))
		}
	}
	slices.Sort(all)
	return all
}

func (p programmed) leads(t tb, want ...string) {
	t.Helper()
	if got := p.at.published(t); !slices.Equal(got, want) {
		t.Errorf("host ports %q, want %q", got, want)
	}
}

func TestHostPorts(t *testing.T) {
	l := start(t)
	before := l.node.state(t)
	at := mapping(53)
	at.HostIP = "192.0.2.1"
	req, plain := l.publish("s1", mapping(8080), at), l.request("s2")
	l.add(t, req)
	l.add(t, req) // the runtime missed the answer
	commits := l.node.rules.Commits()
	l.add(t, plain)
	if now := l.node.rules.Commits(); now != commits {
		t.Errorf("a pod without host ports: %d commits of rules", now-commits)
	}
	l.whole(t, req)
	ip := l.record(t, req).Addresses[0].Addr().String()
	want := []string{"192.0.2.1 . udp . 53 : " + ip + " . 80", "udp . 8080 : " + ip + " . 80"}
	l.leads(t, want...)
	if got := l.node.kernel.flushes(); !slices.Contains(got, "[0.0.0.0:8080 192.0.2.1:53]") || slices.Contains(got, ip) {
		t.Errorf("flushed when it came: %q", got)
	}
	if err := l.Check(t.Context(), req); err != nil {
		t.Error(err)
	}

	state, written := l.node.state(t), l.node.commits()
	l = l.restart(t)
	if now := l.node.commits(); now != written {
		t.Errorf("a restart commits: %v, were %v", now, written)
	}
	if now := l.node.state(t); now != state {
		t.Errorf("a restart changes:\n%s\nit was:\n%s", now, state)
	}

	l.del(t, req)
	l.leads(t)
	l.settled(t)
	if got := l.node.kernel.flushes(); !slices.Contains(got, ip) {
		t.Errorf("flushed when it went: %q", got)
	}
	l.del(t, plain)
	l.nothingLeft(t, before)
	if left, err := os.ReadDir(l.node.dir + "-extra"); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// A pod on a pre-plugged port has host ports like any other.
func TestHostPortsOnPrepluggedPorts(t *testing.T) {
	l := prepluggedStart(t, 2)
	req := l.publish("s1", mapping(8080))
	l.add(t, req)
	ip := l.record(t, req).Addresses[0].Addr().String()
	l.leads(t, "udp . 8080 : "+ip+" . 80")
	l.del(t, req)
	l.leads(t)
}

func TestHostPortTaken(t *testing.T) {
	l := start(t)
	first := l.publish("s1", mapping(8080))
	l.add(t, first)
	state, left := l.node.state(t), l.left(t)
	second := l.publish("s2", mapping(81), mapping(8080))
	_, err := l.Add(t.Context(), second)
	if !codeIs(err, cni.CodeTryAgainLater) || !strings.Contains(err.Error(), "host port 8080/udp") || !strings.Contains(err.Error(), "pod default/pod-s1 has it") {
		t.Errorf("ADD: %v", err)
	}
	l.settled(t)
	if now := l.node.state(t); now != state || !slices.Equal(l.left(t), left) {
		t.Errorf("something is left of it: %v\n%s\nit was:\n%s", l.left(t), now, state)
	}
	// The first pod is deleted. The port is free once the DEL is answered, although not everything of the pod is removed.
	l.node.pods.onDelete(func() error { return errors.New("held up") })
	l.del(t, first)
	l.add(t, second)
	l.node.pods.onDelete(nil)
	ip := l.record(t, second).Addresses[0].Addr().String()
	l.leads(t, "udp . 8080 : "+ip+" . 80", "udp . 81 : "+ip+" . 80")
	l.settled(t)
	l.leads(t, "udp . 8080 : "+ip+" . 80", "udp . 81 : "+ip+" . 80")
}

// An agent that finds two records with one host port reports the pod that lacks it.
func TestHostPortConflictIsReported(t *testing.T) {
	l := start(t)
	l.add(t, l.publish("s1", mapping(8080)))
	l.add(t, l.publish("s2", mapping(8081)))
	l.stop()
	files, err := filepath.Glob(filepath.Join(l.node.dir+"-extra", "*"))
	if err != nil || len(files) != 2 {
		t.Fatalf("files %q, %v", files, err)
	}
	for _, file := range files { // no agent writes two records with one port
		data, err := os.ReadFile(file)
		if err == nil {
			err = os.WriteFile(file, bytes.ReplaceAll(data, []byte(":8081"), []byte(":8080")), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	var reported []string
	l.node.conflict = func(rec *attach.Record, why error) { reported = append(reported, rec.PodName+": "+why.Error()) }
	l.restart(t)
	want := "pod-s2: pod default/pod-s2 cannot have host port 8080/udp of this node: pod default/pod-s1 has it"
	if len(reported) != 1 || reported[0] != want {
		t.Errorf("reported %q, want %q", reported, want)
	}
}

func TestHostPortsRefused(t *testing.T) {
	l := start(t)
	before := l.node.state(t)
	wrong := mapping(8080)
	wrong.HostIP = "2001:db8::1"
	_, err := l.Add(t.Context(), l.publish("s1", mapping(1), wrong))
	if !codeIs(err, cni.CodeUnsupportedField) || !strings.Contains(err.Error(), "runtimeConfig.portMappings[1].hostIP") {
		t.Errorf("ADD: %v", err)
	}
	_, err = l.Add(t.Context(), l.publish("s1", mapping(1), mapping(9)))
	if !codeIs(err, cni.CodeInvalidConfig) || !strings.Contains(err.Error(), "pod default/pod-s1 cannot have host port 9/udp: it is reserved for another program") {
		t.Errorf("ADD of a port that is kept: %v", err)
	}
	l.nothingLeft(t, before)
}

// If the rules, the conntrack flush or the flows fail, the ADD fails, nothing is left, and the ports are free.
func TestHostPortsFail(t *testing.T) {
	for name, fail := range map[string]func(n *node) (clear func()){
		"rules": func(n *node) func() {
			n.ruleEngine.refuse(func(c reconcile.Change[nft.Key, nft.Item]) error {
				if len(c.Set) > 0 {
					return errors.New("no")
				}
				return nil
			})
			return func() { n.ruleEngine.refuse(nil) }
		},
		"connections": func(n *node) func() {
			n.kernel.fail(errors.New("no"))
			return func() { n.kernel.fail(nil) }
		},
		"flows": func(n *node) func() {
			n.flowEngine.refuse(func(c reconcile.Change[openflow.Key, openflow.Entry]) error {
				if len(c.Set) > 0 {
					return errors.New("no")
				}
				return nil
			})
			return func() { n.flowEngine.refuse(nil) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := start(t)
			before := l.node.state(t)
			clear := fail(l.node)
			if _, err := l.Add(t.Context(), l.publish("s1", mapping(8080))); err == nil {
				t.Error("ADD succeeded")
			}
			clear()
			l.nothingLeft(t, before)
			l.add(t, l.publish("s2", mapping(8080)))
		})
	}
}

// If an agent ends during an ADD or a DEL, no host port is left.
func TestHostPortsOfAFormerLife(t *testing.T) {
	for _, state := range []attach.State{attach.Planned, attach.Closing} {
		l := start(t)
		before := l.node.state(t)
		req := l.publish("s1", mapping(8080))
		l.add(t, req)
		rec := l.record(t, req)
		rec.State = state
		if err := l.store.Put(t.Context(), rec); err != nil {
			t.Fatal(err)
		}
		l = l.restart(t)
		l.leads(t)
		l.nothingLeft(t, before)
	}
}

// Connections to all pods that are removed together are flushed in one call, and none for pods without host ports.
func TestHostPortsFlushedTogether(t *testing.T) {
	l := start(t)
	before := l.node.state(t)
	reqs := []*cni.Request{l.publish("s1", mapping(1)), l.publish("s2", mapping(2)), l.request("s3")}
	var recs []attach.Record
	var ips []string
	for _, req := range reqs {
		l.add(t, req)
		recs = append(recs, l.record(t, req))
		ips = append(ips, l.record(t, req).Addresses[0].Addr().String())
	}
	l.node.kernel.flushes()
	if failed := l.Remove(t.Context(), recs[2:]); len(failed) > 0 || len(l.node.kernel.flushes()) > 0 {
		t.Errorf("a pod without host ports is looked for: %v", failed)
	}
	if failed := l.Remove(t.Context(), recs[:2]); len(failed) > 0 {
		t.Fatal(failed)
	}
	if got := l.node.kernel.flushes(); !slices.Equal(got, []string{ips[0] + " " + ips[1]}) {
		t.Errorf("flushed: %q", got)
	}
	for _, req := range reqs {
		l.del(t, req)
	}
	l.nothingLeft(t, before)
}

// A failed flush does not block the removal of a pod.
func TestHostPortsNotFlushed(t *testing.T) {
	l := start(t)
	before := l.node.state(t)
	req := l.publish("s1", mapping(8080))
	l.add(t, req)
	l.node.kernel.fail(errors.New("no"))
	l.del(t, req)
	l.nothingLeft(t, before)
}

// The host ports of an ADD that is given up are withdrawn even if its flows cannot be removed: another pod may have the ports by then.
func TestHostPortsOfAnADDThatIsGivenUp(t *testing.T) {
	l := start(t)
	before := l.node.state(t)
	req := l.publish("s1", mapping(8080))
	l.node.pods.onCreate(func() error {
		eventually(t, "its host ports are there", func() bool { return len(l.node.published(t)) > 0 })
		l.node.flowEngine.fail(errors.New("no"))
		return errBroken
	})
	if _, err := l.Add(t.Context(), req); err == nil {
		t.Fatal("attached")
	}
	eventually(t, "its host ports are gone", func() bool { return len(l.node.published(t)) == 0 })
	l.node.flowEngine.fail(nil)
	l.nothingLeft(t, before)
}

// A pre-plugged port is free again once its pod's record is deleted, even if a file next to the record cannot be removed.
func TestPrepluggedPortIsGivenBack(t *testing.T) {
	l := prepluggedStart(t, 2)
	req := l.publish("s1", mapping(8080))
	l.add(t, req)
	files, err := os.ReadDir(l.node.dir + "-extra")
	if err != nil || len(files) != 1 {
		t.Fatalf("%v, %v", files, err)
	}
	file := filepath.Join(l.node.dir+"-extra", files[0].Name())
	if err := errors.Join(os.Remove(file), os.MkdirAll(filepath.Join(file, "full"), 0o700)); err != nil {
		t.Fatal(err)
	}
	taken := l.record(t, req).OFPort
	l.del(t, req)
	eventually(t, "the record is gone", func() bool {
		_, err := l.store.Get(keyOf(req))
		return errors.Is(err, attach.ErrNotFound)
	})
	eventually(t, "the port is free", func() bool {
		free, _, _ := l.ports.Preplugged.List()
		return slices.Contains(free, taken)
	})
	if err := os.RemoveAll(file); err != nil {
		t.Fatal(err)
	}
	l.settled(t)
}

// If the runtime has forgotten a pod's former sandbox, the pod gets its host ports in the next one.
func TestHostPortsOfAForgottenSandbox(t *testing.T) {
	l := start(t)
	before := l.node.state(t)
	first, second := l.publish("s1", mapping(8080)), l.publish("s2", mapping(8080))
	second.Args = first.Args
	l.add(t, first)
	if _, err := l.Add(t.Context(), second); !codeIs(err, cni.CodeTryAgainLater) {
		t.Errorf("ADD while the former sandbox is there: %v", err)
	}
	l.node.pods.RemoveNamespace(first.Netns)
	other := l.publish("s3", mapping(8080))
	if _, err := l.Add(t.Context(), other); !codeIs(err, cni.CodeTryAgainLater) {
		t.Errorf("ADD of another pod: %v", err)
	}
	l.add(t, second)
	l.leads(t, "udp . 8080 : "+l.record(t, second).Addresses[0].Addr().String()+" . 80")
	l.settled(t)
	if _, err := l.store.Get(keyOf(first)); !errors.Is(err, attach.ErrNotFound) {
		t.Errorf("the former sandbox: %v", err)
	}
	l.del(t, second)
	l.nothingLeft(t, before)
}
