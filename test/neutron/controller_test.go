//go:build lab

package neutron

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stackubev1 "weft.dev/weft/api/stackube/v1"
	weftv1 "weft.dev/weft/api/weft/v1"
	"weft.dev/weft/deploy"
	"weft.dev/weft/lab/process"
	weftlab "weft.dev/weft/lab/stack/openstack"
	"weft.dev/weft/test/neutron/cloudfault"
)

// newWay serves the proxy through which a controller reaches OpenStack, which is in a namespace of its own.
func newWay(t *testing.T) *cloudfault.Proxy {
	t.Helper()
	p, err := cloudfault.New(cloudFor.stack.Transport())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}

// controllerUnderTest is `weft controller`, with the rights that the chart gives it, on a real API server and a real OpenStack.
type controllerUnderTest struct {
	kube  client.Client
	way   *cloudfault.Proxy
	group *process.Group
	name  string
	log   string
	argv  []string
	// health is the address of the program's metrics.
	health string
}

// startController runs the program until the test ends, with more lines in its kubestack.conf.
func startController(ctx context.Context, t *testing.T, lines ...string) *controllerUnderTest {
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
		cloudFor.stack.AuthURL(), weftlab.Admin, weftlab.AdminPassword, weftlab.Admin, weftlab.Region) + strings.Join(lines, "\n") + "\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	health := freeAddress(t)
	c := &controllerUnderTest{
		health: health, kube: kube, way: newWay(t), group: process.NewGroup(dir, dir), name: "controller", log: filepath.Join(dir, "controller.log"),
		argv: []string{
			weft(t), "controller", "--kubeconfig", kubeconfig(t, dir), "--health-address", health, "--neutron-config", config, "--neutron-cluster", "test",
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
	err := c.group.Start(ctx, process.Program{Name: c.name, Argv: c.argv, Env: []string{"HTTP_PROXY=" + c.way.URL(), "NO_PROXY=127.0.0.1"}})
	if err != nil {
		t.Fatal(err)
	}
}

// freeAddress returns an address of loopback that no program listens on.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

// metrics returns what the program reports of itself.
func (c *controllerUnderTest) metrics(ctx context.Context, t *testing.T) string {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+c.health+"/metrics", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	res, err := (&http.Transport{}).RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("metrics: %d, %v", res.StatusCode, err)
	}
	return string(text)
}

// noSecrets searches all that the program writes, but Tenants' specs, for passwords and tokens.
func (c *controllerUnderTest) noSecrets(ctx context.Context, t *testing.T) {
	t.Helper()
	written := map[string]string{"log": string(c.said(t)), "metrics": c.metrics(ctx, t)}
	for _, kind := range []schema.GroupVersionKind{
		{Version: "v1", Kind: "Event"},
		{Group: "events.k8s.io", Version: "v1", Kind: "Event"},
		{Version: "v1", Kind: "Namespace"},
		{Version: "v1", Kind: "Service"},
		{Group: stackubev1.GroupName, Version: "v1", Kind: "Tenant"},
		{Group: stackubev1.GroupName, Version: "v1", Kind: "Network"},
		{Group: weftv1.GroupName, Version: "v1", Kind: "NeutronPort"},
	} {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(kind)
		if err := c.kube.List(ctx, list); err != nil {
			t.Fatal(err)
		}
		for i := range list.Items {
			o := &list.Items[i]
			if kind.Kind == "Tenant" {
				unstructured.RemoveNestedField(o.Object, "spec")
				o.SetManagedFields(nil)
			}
			text, err := o.MarshalJSON()
			if err != nil {
				t.Fatal(err)
			}
			written[kind.Kind+" "+o.GetNamespace()+"/"+o.GetName()] = string(text)
		}
	}
	for what, text := range written {
		if holdsSecret(text) {
			t.Errorf("a password or a token is in %s", what)
		}
	}
	if len(written) < 6 {
		t.Errorf("only %d texts were searched", len(written))
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
