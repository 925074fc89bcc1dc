package overlay

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/link/podlink"
)

// keepResult writes what a runtime caches of an ADD.
func keepResult(t *testing.T, dir string, req *cni.Request, result *types100.Result) {
	t.Helper()
	data, err := json.Marshal(map[string]any{
		"kind": "cniCacheV1", "containerId": req.ContainerID, "ifName": req.IfName, "networkName": "weft", "netns": req.Netns,
		"cniArgs": [][2]string{
			{"K8S_POD_NAMESPACE", req.Args.PodNamespace}, {"K8S_POD_NAME", req.Args.PodName}, {"K8S_POD_UID", req.Args.PodUID},
		},
		"result": result,
	})
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(dir, "results", "weft-"+req.ContainerID+"-"+req.IfName)
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// spoilt are contents of records that cannot be read: cut short, and as a damaged file system leaves them.
func spoilt() map[string]string {
	return map[string]string{"cut short": "{", "empty": "", "zeros": "\x00\x00\x00\x00"}
}

// spoil replaces the content of all records.
func (n *node) spoil(t *testing.T, content string) {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(n.dir, "*.json"))
	if err != nil || len(names) == 0 {
		t.Fatal(names, err)
	}
	for _, name := range names {
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// An unreadable record is rebuilt if the runtime's result and the pod's interface agree: for a pod with a port of its own and on a
// pre-plugged one, and including the file next to the record. Nothing else on the node changes.
func TestRecordIsRebuilt(t *testing.T) {
	for name, life := range map[string]func(*testing.T) *life{"veth": start, "pre-plugged": func(t *testing.T) *life { return prepluggedStart(t, 4) }} {
		for damage, content := range spoilt() {
			t.Run(name+" "+damage, func(t *testing.T) { rebuilt(t, life(t), content) })
		}
	}
}

// rebuilt fails unless a record with a content is rebuilt.
func rebuilt(t *testing.T, l *life, content string) {
	cache := t.TempDir()
	req := l.request("s1")
	keepResult(t, cache, req, l.add(t, req))
	l.whole(t, req)
	want, before := l.record(t, req), l.node.state(t)
	l.stop()
	l.node.spoil(t, content)
	l.node.cache = cache
	l = l.node.begin(t)
	t.Cleanup(l.stop)
	l.update(t, sample())
	l.settled(t)
	got := l.record(t, req)
	got.Created = want.Created
	if a, b := jsonOf(t, got), jsonOf(t, want); a != b {
		t.Errorf("record\n%s\nwant\n%s", a, b)
	}
	if now := l.node.state(t); now != before {
		t.Errorf("the node's state differs:\n%s\nit was:\n%s", now, before)
	}
	if broken := l.store.Broken(); len(broken) != 0 {
		t.Errorf("still broken: %v", broken)
	}
	if err := l.Check(t.Context(), req); err != nil {
		t.Error(err)
	}
}

// If they disagree nothing is rebuilt. The broken record is kept until the attachment is deleted, and until then it is reported: it is
// not older than the boot.
func TestRecordIsNotRebuilt(t *testing.T) {
	for damage, content := range spoilt() {
		t.Run(damage, func(t *testing.T) { notRebuilt(t, content) })
	}
}

func notRebuilt(t *testing.T, content string) {
	l := start(t)
	cache := t.TempDir()
	req := l.request("s1")
	keepResult(t, cache, req, l.add(t, req))
	l.node.pods.Alter(l.record(t, req).HostInterface, func(p *podlink.Pair) { p.PodAddresses = nil })
	l.stop()
	l.node.spoil(t, content)
	l.node.cache = cache
	l = l.node.begin(t)
	t.Cleanup(l.stop)
	l.update(t, sample())
	broken := l.store.Broken()
	if len(broken) != 1 || !strings.HasSuffix(filepath.Dir(broken[0].Path), "broken") || broken[0].Modified.Before(l.store.Booted()) {
		t.Errorf("broken: %v", broken)
	}
	if len(l.store.List()) != 0 {
		t.Error("a record was rebuilt of what does not agree")
	}
	l.del(t, req)
	if broken := l.store.Broken(); len(broken) != 0 {
		t.Errorf("still broken after DEL: %v", broken)
	}
}

func jsonOf(t *testing.T, value any) string {
	t.Helper()
	data, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
