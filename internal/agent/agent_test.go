package agent

import (
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientset "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"

	"weft.dev/weft/internal/cni"
)

func TestWriteConf(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, CNIConfName)
	if err := writeConf(dir, cni.DefaultSocket, cni.DefaultRecords, ""); err != nil {
		t.Fatal(err)
	}
	const want = `{
  "cniVersion": "1.0.0",
  "name": "weft",
  "plugins": [
    {
      "type": "weft",
      "capabilities": {
        "bandwidth": true,
        "io.kubernetes.cri.pod-annotations": true,
        "portMappings": true
      }
    }
  ]
}
`
	if got := content(t, path); got != want {
		t.Errorf("content\n%s\nwant\n%s", got, want)
	}
	first := stat(t, path)
	if first.Mode() != 0o644 {
		t.Errorf("mode %v", first.Mode())
	}
	if err := writeConf(dir, cni.DefaultSocket, cni.DefaultRecords, ""); err != nil {
		t.Fatal(err)
	}
	if !os.SameFile(first, stat(t, path)) {
		t.Error("the same again was written again")
	}
	if err := os.Chmod(path, 0o666); err != nil {
		t.Fatal(err)
	}
	if err := writeConf(dir, cni.DefaultSocket, cni.DefaultRecords, ""); err != nil || stat(t, path).Mode() != 0o644 {
		t.Errorf("mode %v, error %v", stat(t, path).Mode(), err)
	}
	if err := writeConf(dir, "/elsewhere/cni.sock", "/elsewhere/records", "/elsewhere/ports"); err != nil {
		t.Fatal(err)
	}
	var list conflist
	if err := json.Unmarshal([]byte(content(t, path)), &list); err != nil {
		t.Fatal(err)
	}
	if p := list.Plugins[0]; p.Socket != "/elsewhere/cni.sock" || p.Records != "/elsewhere/records" {
		t.Errorf("plugin %+v", p)
	}
	if _, err := cni.ParseNetConf([]byte(`{"cniVersion":"1.0.0","name":"` + list.Name + `","type":"weft","socket":"` + list.Plugins[0].Socket + `"}`)); err != nil {
		t.Errorf("the plugin refuses what is written: %v", err)
	}
	only(t, dir, CNIConfName)
	if err := writeConf(filepath.Join(dir, "missing"), "/s", "/r", ""); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without its directory: %v", err)
	}
}

// A reader that opens the file while it is replaced reads the old content or the new. A failure leaves nothing behind.
func TestWriteAtomically(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	if err := writeAtomically(path, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	open, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = open.Close() }()
	if err := writeAtomically(path, []byte("new"), 0o600); err != nil {
		t.Fatal(err)
	}
	if old, err := io.ReadAll(open); err != nil || string(old) != "old" {
		t.Errorf("a reader that had the file open reads %q, %v", old, err)
	}
	if got := content(t, path); got != "new" {
		t.Errorf("content %q", got)
	}
	taken := filepath.Join(dir, "directory")
	if err := os.MkdirAll(filepath.Join(taken, "full"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := writeAtomically(taken, []byte("x"), 0o600); err == nil || !strings.Contains(err.Error(), taken) {
		t.Errorf("in place of a directory: %v", err)
	}
	only(t, dir, "directory", "file")
}

func TestInstallPlugin(t *testing.T) {
	dir := t.TempDir()
	from, bin := filepath.Join(dir, "weft-cni"), filepath.Join(dir, "bin")
	to := filepath.Join(bin, "weft")
	if err := errors.Join(os.WriteFile(from, []byte("program"), 0o600), os.Mkdir(bin, 0o700)); err != nil {
		t.Fatal(err)
	}
	install := func() {
		t.Helper()
		if err := InstallPlugin(from, to); err != nil {
			t.Fatal(err)
		}
		if info := stat(t, to); info.Mode() != 0o755 {
			t.Errorf("mode %v", info.Mode())
		}
		if got := content(t, to); got != content(t, from) {
			t.Errorf("content %q", got)
		}
		only(t, bin, "weft")
	}
	install()
	first := stat(t, to)
	install()
	if !os.SameFile(first, stat(t, to)) {
		t.Error("the same again was written again")
	}
	for _, mode := range []fs.FileMode{0o755 | fs.ModeSetuid, 0o777, 0o644} {
		if err := os.Chmod(to, mode); err != nil {
			t.Fatal(err)
		}
		install()
	}
	if err := errors.Join(os.Remove(to), os.Symlink(from, to)); err != nil {
		t.Fatal(err)
	}
	install()
	if err := os.WriteFile(from, []byte("newer program"), 0o600); err != nil {
		t.Fatal(err)
	}
	install()
	if err := InstallPlugin(filepath.Join(dir, "missing"), to); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a program: %v", err)
	}
}

func content(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func stat(t *testing.T, path string) fs.FileInfo {
	t.Helper()
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info
}

func only(t *testing.T, dir string, names ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var have []string
	for _, entry := range entries {
		have = append(have, entry.Name())
	}
	if strings.Join(have, " ") != strings.Join(names, " ") {
		t.Errorf("%s has %v, want %v", dir, have, names)
	}
}

func TestReport(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
		{Type: corev1.NodeReady, Status: corev1.ConditionTrue},
	}}}
	clients := clientset.NewClientset(node)
	condition := func() corev1.NodeCondition {
		t.Helper()
		have, err := clients.CoreV1().Nodes().Get(t.Context(), "n", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if len(have.Status.Conditions) != 2 {
			t.Fatalf("conditions %+v", have.Status.Conditions)
		}
		for _, c := range have.Status.Conditions {
			if c.Type == corev1.NodeNetworkUnavailable {
				return c
			}
		}
		t.Fatal("no condition")
		return corev1.NodeCondition{}
	}
	writes := func() (n int) {
		for _, action := range clients.Actions() {
			if action.GetVerb() != "get" {
				n++
				if action.GetSubresource() != "status" {
					t.Errorf("%s of %s/%s", action.GetVerb(), action.GetResource().Resource, action.GetSubresource())
				}
			}
		}
		return n
	}
	for range 3 {
		if err := reportNotReady(t.Context(), clients, "n", errors.New("no switch")); err != nil {
			t.Fatal(err)
		}
	}
	first := condition()
	if first.Status != corev1.ConditionTrue || first.Reason != reasonNotReady || first.Message != "no switch" || writes() != 1 {
		t.Errorf("%d writes, condition %+v", writes(), first)
	}
	if err := reportNotReady(t.Context(), clients, "n", errors.New("no database")); err != nil {
		t.Fatal(err)
	}
	if second := condition(); second.Message != "no database" || !second.LastTransitionTime.Equal(&first.LastTransitionTime) || writes() != 2 {
		t.Errorf("%d writes, condition %+v", writes(), second)
	}
	for range 3 {
		if err := reportReady(t.Context(), clients, "n"); err != nil {
			t.Fatal(err)
		}
	}
	if last := condition(); last.Status != corev1.ConditionFalse || last.Reason != reasonReady || writes() != 3 {
		t.Errorf("%d writes, condition %+v", writes(), last)
	}
	if err := reportReady(t.Context(), clients, "missing"); err == nil || !strings.Contains(err.Error(), "missing") {
		t.Errorf("of a node that is not there: %v", err)
	}
}

func TestOptions(t *testing.T) {
	good := Options{Config: &rest.Config{}, Node: "n"}.withDefaults()
	if err := good.validate(); err != nil || good.StateDir != DefaultStateDir || good.Verify != DefaultVerify {
		t.Errorf("%v %+v", err, good)
	}
	for words, change := range map[string]func(*Options){
		"kubeconfig": func(o *Options) { o.Config = nil },
		"node name":  func(o *Options) { o.Node = "" },
		"datapath":   func(o *Options) { o.Datapath = "dpdk" },
	} {
		bad := good
		change(&bad)
		if err := bad.validate(); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("error %v, want one with %q", err, words)
		}
	}
}
