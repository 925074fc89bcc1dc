package node

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"

	networkv1 "weft.dev/weft/api/openshift/v1"
)

// What isolates pods is read as it is in etcd, not as an API server that lags has it.
func TestBeginsWithTheLatestState(t *testing.T) {
	for _, kind := range []runtime.Object{
		&networkv1.NetNamespace{}, &networkv1.EgressNetworkPolicy{}, &networkingv1.NetworkPolicy{}, &corev1.Pod{}, &corev1.Namespace{},
	} {
		if beginsWithOldList(kind) {
			t.Errorf("%T begins with a list of an old state", kind)
		}
	}
}

// An agent that starts sends one list and one watch for each kind that it waits for, in this order, and no request for a stream.
func TestBeginsWithLists(t *testing.T) {
	var mu sync.Mutex
	requests := map[string][]string{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked := "list"
		if r.URL.Query().Get("watch") != "" {
			asked = "watch"
		}
		if r.URL.Query().Has("sendInitialEvents") {
			asked = "stream"
		}
		mu.Lock()
		requests[r.URL.Path] = append(requests[r.URL.Path], asked)
		mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		if asked != "list" {
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
			return
		}
		prefix, resource := path.Split(r.URL.Path) // /apis/GROUP/VERSION/ or /api/VERSION/
		_, version, _ := strings.Cut(strings.Trim(prefix, "/"), "/")
		kind := map[string]string{
			"clusternetworks": "ClusterNetworkList", "hostsubnets": "HostSubnetList", "services": "ServiceList",
			"endpointslices": "EndpointSliceList", "nodes": "NodeList",
		}[resource]
		_, _ = w.Write([]byte(`{"kind":"` + kind + `","apiVersion":"` + version + `","metadata":{"resourceVersion":"7"},"items":[]}`))
	}))
	t.Cleanup(server.Close)
	t.Cleanup(server.CloseClientConnections)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	o, err := New(Options{Config: &rest.Config{Host: server.URL}, Node: "n", StateDir: t.TempDir(), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- o.Run(ctx) }()
	if err := o.synced(ctx); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(requests) != 5 {
		t.Errorf("requests of %d kinds, want 5: %v", len(requests), requests)
	}
	for of, asked := range requests {
		if asked[0] != "list" || slices.Contains(asked, "stream") {
			t.Errorf("%s: requests %v, want a list and then watches", of, asked)
		}
	}
}
