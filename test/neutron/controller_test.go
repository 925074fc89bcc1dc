//go:build lab

package neutron

import (
	"context"
	"fmt"
	"log"
	"maps"
	"net"
	"net/http"
	"net/http/httputil"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stackubev1 "weft.dev/weft/api/stackube/v1"
	weftv1 "weft.dev/weft/api/weft/v1"
	"weft.dev/weft/deploy"
	"weft.dev/weft/lab/process"
	weftlab "weft.dev/weft/lab/stack/openstack"
)

// way is the proxy through which the controller reaches OpenStack. It counts the calls that write.
type way struct {
	url string

	mu     sync.Mutex
	writes []string
	reads  map[string]bool // what was asked for since the last time, with its query
}

// newWay serves a proxy on loopback: OpenStack is in a namespace of its own.
func newWay(t *testing.T) *way {
	t.Helper()
	w := &way{reads: map[string]bool{}}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w.url = "http://" + listener.Addr().String()
	forward := &httputil.ReverseProxy{
		Rewrite: func(*httputil.ProxyRequest) {}, Transport: cloudFor.stack.Transport(), ErrorLog: log.New(&notes{}, "", 0),
	}
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(out http.ResponseWriter, in *http.Request) {
		w.note(in)
		forward.ServeHTTP(out, in)
	})}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	return w
}

// note keeps a call that writes. Asking for a token is none.
func (w *way) note(in *http.Request) {
	if strings.HasSuffix(in.URL.Path, "/auth/tokens") {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if in.Method == http.MethodGet || in.Method == http.MethodHead {
		w.reads[in.URL.RequestURI()] = true
		return
	}
	w.writes = append(w.writes, in.Method+" "+in.URL.Path)
}

// taken returns the writing calls since the last time.
func (w *way) taken() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	taken := w.writes
	w.writes, w.reads = nil, map[string]bool{}
	return taken
}

// read reports whether a path with its query has been asked for since the last time.
func (w *way) read(path string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.reads[path]
}

// notes is a log that tests search.
type notes struct {
	mu   sync.Mutex
	text strings.Builder
}

// Write keeps what is logged.
func (n *notes) Write(p []byte) (int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.text.Write(p)
}

// controllerUnderTest is `weft controller`, with the rights that the chart gives it, on a real API server and a real OpenStack.
type controllerUnderTest struct {
	kube  client.Client
	way   *way
	group *process.Group
	name  string
	log   string
	argv  []string
}

// startController runs the program until the test ends.
func startController(ctx context.Context, t *testing.T) *controllerUnderTest {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, stackubev1.AddToScheme, weftv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	kube, err := client.New(cloudFor.api.Config(), client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	grant(ctx, t, kube)
	dir := t.TempDir()
	config := filepath.Join(dir, "kubestack.conf")
	text := fmt.Sprintf("[Global]\nauth-url = %s\nusername = %s\npassword = %s\ntenant-name = %s\nregion = %s\n",
		cloudFor.stack.AuthURL(), weftlab.Admin, weftlab.AdminPassword, weftlab.Admin, weftlab.Region)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c := &controllerUnderTest{
		kube: kube, way: newWay(t), group: process.NewGroup(dir, dir), name: "controller", log: filepath.Join(dir, "controller.log"),
		argv: []string{
			weft(t), "controller", "--kubeconfig", kubeconfig(t, dir), "--health-address=", "--neutron-config", config, "--neutron-cluster", "test",
		},
	}
	c.start(ctx, t)
	t.Cleanup(func() {
		c.stop()
		if t.Failed() {
			t.Log(string(c.said(t)))
		}
	})
	return c
}

func (c *controllerUnderTest) start(ctx context.Context, t *testing.T) {
	t.Helper()
	err := c.group.Start(ctx, process.Program{Name: c.name, Argv: c.argv, Env: []string{"HTTP_PROXY=" + c.way.url, "NO_PROXY=127.0.0.1"}})
	if err != nil {
		t.Fatal(err)
	}
}

func (c *controllerUnderTest) stop() { c.group.Stop(20*time.Second, func(string) bool { return true }) }

func (c *controllerUnderTest) said(t *testing.T) []byte {
	t.Helper()
	said, err := os.ReadFile(c.log)
	if err != nil {
		t.Fatal(err)
	}
	return said
}

// kubeconfig leads to the API server, as the controller's service account.
func kubeconfig(t *testing.T, dir string) string {
	t.Helper()
	as := cloudFor.api.ConfigAs("weft", "weft-controller")
	config := clientcmdapi.NewConfig()
	config.Clusters["test"] = &clientcmdapi.Cluster{Server: as.Host, InsecureSkipTLSVerify: true}
	config.AuthInfos["test"] = &clientcmdapi.AuthInfo{
		Token: as.BearerToken, Impersonate: as.Impersonate.UserName, ImpersonateGroups: as.Impersonate.Groups,
	}
	config.Contexts["test"] = &clientcmdapi.Context{Cluster: "test", AuthInfo: "test"}
	config.CurrentContext = "test"
	path := filepath.Join(dir, "kubeconfig")
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		t.Fatal(err)
	}
	return path
}

// grant applies the rights of the controller as the chart renders them with neutron.enabled.
func grant(ctx context.Context, t *testing.T, kube client.Client) {
	t.Helper()
	all, err := deploy.NeutronObjects()
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]bool{"Namespace": true, "ServiceAccount": true, "Role": true, "RoleBinding": true, "ClusterRole": true, "ClusterRoleBinding": true}
	for _, o := range all {
		if !kinds[o.GetKind()] {
			continue
		}
		o = &unstructured.Unstructured{Object: maps.Clone(o.Object)}
		if err := kube.Create(ctx, o); err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatalf("%s %s: %v", o.GetKind(), o.GetName(), err)
		}
	}
}
