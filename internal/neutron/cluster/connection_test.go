package cluster

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	stackubev1 "weft.dev/weft/api/stackube/v1"
	"weft.dev/weft/internal/neutron/openstack"
)

// keystone answers requests for tokens: 401 unless the body has the word "right". Its catalogue has a Neutron.
func keystone(t *testing.T, tries *atomic.Int32) string {
	t.Helper()
	var url string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/net") {
			_, _ = fmt.Fprintf(w, `{"versions":[{"id":"v2.0","status":"CURRENT","links":[{"rel":"self","href":"%s/net/v2.0/"}]}]}`, url)
			return
		}
		if r.Method != http.MethodPost {
			_, _ = fmt.Fprintf(w, `{"versions":{"values":[{"id":"v3.14","status":"stable","links":[{"rel":"self","href":"%s/v3/"}]}]}}`, url)
			return
		}
		tries.Add(1)
		body := make([]byte, 4096)
		n, _ := r.Body.Read(body)
		if !strings.Contains(string(body[:n]), `"right"`) {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		w.Header().Set("X-Subject-Token", "token")
		w.WriteHeader(http.StatusCreated)
		_, _ = fmt.Fprintf(w, `{"token":{"expires_at":"2099-01-01T00:00:00.000000Z","project":{"id":"p"},"catalog":[`+
			`{"type":"identity","endpoints":[{"interface":"public","region":"R","url":"%[1]s/v3"}]},`+
			`{"type":"network","endpoints":[{"interface":"public","region":"R","url":"%[1]s/net"}]}]}}`, url)
	}))
	t.Cleanup(server.Close)
	url = server.URL
	return url
}

// All objects share one try of a wrong password. None of them fails by itself: they are reconciled again together, at the latest after a
// minute, and the first one that finds another password in kubestack.conf opens the session for all.
func TestWrongPasswordIsTriedOnce(t *testing.T) {
	var tries atomic.Int32
	url := keystone(t, &tries)
	path := filepath.Join(t.TempDir(), "kubestack.conf")
	write := func(password string) {
		text := "[Global]\nauth-url = " + url + "/v3\nusername = admin\npassword = " + password + "\ntenant-name = admin\nregion = R\n" +
			"[Plugin]\nplugin-name = ovs\n"
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("wrong")
	var there []client.Object
	for i := range 10 {
		name := fmt.Sprintf("net-%d", i)
		there = append(there,
			&stackubev1.Network{ObjectMeta: metav1.ObjectMeta{Namespace: "blue", Name: name, Finalizers: []string{Finalizer}}},
			&stackubev1.Tenant{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Finalizers: []string{Finalizer}}})
	}
	r := newRig(t, there...)
	r.open.path, r.open.log, r.open.attempts = path, discard(), openstack.NewAttempts()
	r.open.held.Store(nil)
	networks := &networkReconciler{client: r.client, cloud: r.open, events: r.events, log: discard()}
	tenants := &tenantReconciler{client: r.client, cloud: r.open, events: r.events, log: discard()}
	var all sync.WaitGroup
	for _, object := range there {
		all.Go(func() {
			req := ctrl.Request{NamespacedName: client.ObjectKeyFromObject(object)}
			reconcile := networks.Reconcile
			if _, is := object.(*stackubev1.Tenant); is {
				reconcile = tenants.Reconcile
			}
			if result, err := reconcile(t.Context(), req); err != nil || result.RequeueAfter <= 0 || result.RequeueAfter > time.Minute {
				t.Errorf("%s: again in %s, error %v", req, result.RequeueAfter, err)
			}
		})
	}
	all.Wait()
	if tries := tries.Swap(0); tries != 1 {
		t.Errorf("%d tries of a wrong password for %d objects, want 1", tries, len(there))
	}
	var n stackubev1.Network
	if err := r.client.Get(t.Context(), client.ObjectKeyFromObject(there[0]), &n); err != nil {
		t.Fatal(err)
	}
	if n.Status.State != stackubev1.StatePending || !strings.Contains(n.Status.Message, "OpenStack answers 401") {
		t.Errorf("the Network is %s: %s", n.Status.State, n.Status.Message)
	}
	write("right")
	for range 3 {
		all.Go(func() {
			if _, err := r.open.get(t.Context()); err != nil {
				t.Errorf("with the right password: %v", err)
			}
		})
	}
	all.Wait()
	if tries := tries.Load(); tries != 1 {
		t.Errorf("%d tries of the right password, want 1", tries)
	}
}
