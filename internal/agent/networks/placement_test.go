package networks

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/overlay"
	"weft.dev/weft/internal/placement"
)

// A pod is placed by what the API server answers while the watches of pods and namespaces stay without an answer.
func TestPlaceWithoutWatches(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch r.URL.Path {
		case "/api/v1/namespaces/ns":
			_, _ = w.Write([]byte(`{"kind":"Namespace","apiVersion":"v1","metadata":{"name":"ns"}}`))
		case "/api/v1/namespaces/ns/pods/p":
			_, _ = w.Write([]byte(`{"kind":"Pod","apiVersion":"v1","metadata":{"name":"p","namespace":"ns","uid":"u"}}`))
		default:
			<-r.Context().Done()
		}
	}))
	t.Cleanup(server.Close)
	t.Cleanup(server.CloseClientConnections)
	p, err := NewPlaces(&rest.Config{Host: server.URL}, "n", &Networks{})
	if err != nil {
		t.Fatal(err)
	}
	p.cluster = func(context.Context) (placement.Cluster, int, error) {
		return placement.Cluster{Default: overlay.NetworkName, DefaultReason: "it is", Known: []string{overlay.NetworkName, "other"}}, 2, nil
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	decision, err := p.Place(ctx, &cni.Request{Args: cni.Args{PodNamespace: "ns", PodName: "p", PodUID: "u"}})
	if err != nil || !strings.Contains(decision.Network, overlay.NetworkName) {
		t.Errorf("placed by %+v, error %v, want network %s", decision, err, overlay.NetworkName)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
