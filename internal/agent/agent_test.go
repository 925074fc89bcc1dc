package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientset "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	networkv1 "weft.dev/weft/api/openshift/v1"
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

// cached is a cache with the objects of a client.
type cached struct {
	cache.Cache
	from client.Reader
}

func (c cached) Get(ctx context.Context, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
	return c.from.Get(ctx, key, obj, opts...)
}

func (c cached) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	return c.from.List(ctx, list, opts...)
}

func clusterNetwork(change func(*networkv1.ClusterNetwork)) *networkv1.ClusterNetwork {
	n := &networkv1.ClusterNetwork{
		ObjectMeta: metav1.ObjectMeta{Name: "default"}, ServiceNetwork: "172.30.0.0/16", PluginName: "redhat/openshift-ovs-subnet",
		ClusterNetworks: []networkv1.ClusterNetworkEntry{{CIDR: "10.128.0.0/14", HostSubnetLength: 9}},
	}
	change(n)
	return n
}

func hostSubnet(name, ip, subnet string) *networkv1.HostSubnet {
	return &networkv1.HostSubnet{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name)}, Host: name, HostIP: ip, Subnet: subnet}
}

func TestView(t *testing.T) {
	asIs := func(*networkv1.ClusterNetwork) {}
	waiting := hostSubnet("own", "192.0.2.1", "")
	waiting.Annotations = map[string]string{networkv1.AnnotationAssignSubnet: "true"}
	waitingRemote := hostSubnet("later", "192.0.2.7", "")
	waitingRemote.Annotations = waiting.Annotations
	own, good := hostSubnet("own", "192.0.2.1", "10.128.0.0/23"), hostSubnet("good", "192.0.2.2", "10.128.2.0/23")
	for name, c := range map[string]struct {
		objects []client.Object
		words   string // of the error
		log     string
		remotes int
	}{
		"all well":             {objects: []client.Object{clusterNetwork(asIs), own, good}, remotes: 1},
		"alone":                {objects: []client.Object{clusterNetwork(asIs), own}},
		"no network":           {objects: []client.Object{own, good}, words: "ClusterNetwork default (create it"},
		"another network":      {objects: []client.Object{clusterNetwork(func(n *networkv1.ClusterNetwork) { n.Name = "other" }), own}, words: "create it"},
		"network of nonsense":  {objects: []client.Object{clusterNetwork(func(n *networkv1.ClusterNetwork) { n.ServiceNetwork = "x" }), own}, words: "serviceNetwork"},
		"no host subnet":       {objects: []client.Object{clusterNetwork(asIs), good}, words: "HostSubnet own: not found"},
		"own is nonsense":      {objects: []client.Object{clusterNetwork(asIs), hostSubnet("own", "x", "10.128.0.0/23"), good}, words: "hostIP"},
		"own has none yet":     {objects: []client.Object{clusterNetwork(asIs), waiting, good}, words: "no subnet yet"},
		"a remote is nonsense": {objects: []client.Object{clusterNetwork(asIs), own, good, hostSubnet("bad", "192.0.2.3", "10.128.4.1/23")}, remotes: 1, log: "hostsubnet=bad"},
		"a remote waits":       {objects: []client.Object{clusterNetwork(asIs), own, good, waitingRemote}, remotes: 1},
	} {
		t.Run(name, func(t *testing.T) {
			scheme := runtime.NewScheme()
			if err := networkv1.AddToScheme(scheme); err != nil {
				t.Fatal(err)
			}
			var log bytes.Buffer
			o := &objects{
				cache: cached{from: fake.NewClientBuilder().WithScheme(scheme).WithObjects(c.objects...).Build()},
				node:  "own", log: slog.New(slog.NewTextHandler(&log, nil)), changed: make(chan struct{}, 1), port: &tunnelPort{log: slog.New(slog.DiscardHandler)},
			}
			view, err := o.view(t.Context())
			if (err != nil) != (c.words != "") || err != nil && !strings.Contains(err.Error(), c.words) {
				t.Fatalf("error %v, want %q", err, c.words)
			}
			if !strings.Contains(log.String(), c.log) || c.log == "" && log.Len() > 0 {
				t.Errorf("log %q, want %q", log.String(), c.log)
			}
			if err != nil {
				return
			}
			if view.Local.Subnet != netip.MustParsePrefix("10.128.0.0/23") || len(view.Remotes) != c.remotes {
				t.Errorf("view %+v", view)
			}
		})
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
