package informer_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"weft.dev/weft/internal/informer"
)

// The first request is a list, of the latest state unless the kind may begin with an older one, and no stream is requested.
func TestNew(t *testing.T) {
	var mu sync.Mutex
	requests := map[string][]string{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		query := r.URL.Query()
		request := "list of " + query.Get("resourceVersion")
		switch {
		case query.Has("sendInitialEvents"):
			request = "stream"
		case query.Get("watch") != "":
			request = "watch"
		}
		mu.Lock()
		requests[r.URL.Path] = append(requests[r.URL.Path], request)
		mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		switch request {
		case "stream":
			http.Error(w, "no streams", http.StatusBadRequest)
		case "watch":
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		default:
			kind := map[string]string{"/api/v1/nodes": "NodeList", "/api/v1/namespaces": "NamespaceList"}[r.URL.Path]
			_, _ = w.Write([]byte(`{"kind":"` + kind + `","apiVersion":"v1","metadata":{"resourceVersion":"7"},"items":[]}`))
		}
	}))
	t.Cleanup(server.Close)
	t.Cleanup(server.CloseClientConnections)
	clients, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	construct := informer.New(func(kind runtime.Object) bool {
		_, is := kind.(*corev1.Namespace)
		return is
	})
	for resource, example := range map[string]client.Object{"nodes": &corev1.Node{}, "namespaces": &corev1.Namespace{}} {
		from := toolscache.NewListWatchFromClient(clients.CoreV1().RESTClient(), resource, "", fields.Everything())
		made := construct(from, example, 0, toolscache.Indexers{})
		running.Go(func() { made.RunWithContext(ctx) })
		if !toolscache.WaitFor(ctx, "", made.HasSyncedChecker()) {
			t.Fatalf("%s: not listed", resource)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if got := requests["/api/v1/nodes"]; got[0] != "list of " || slices.Contains(got, "stream") {
		t.Errorf("requests for nodes: %q, want a list of the latest state first, and no stream", got)
	}
	if got := requests["/api/v1/namespaces"]; got[0] != "list of 0" || slices.Contains(got, "stream") {
		t.Errorf("requests for namespaces: %q, want a list of any state first, and no stream", got)
	}
}
