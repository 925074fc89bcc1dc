package agent

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace/noop"
	"k8s.io/client-go/rest"

	"weft.dev/weft/internal/agent/engines"
	"weft.dev/weft/internal/agent/events"
	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/health"
	"weft.dev/weft/internal/metrics"
	"weft.dev/weft/internal/metrics/metricstest"
	"weft.dev/weft/internal/timing"
)

// A watch counts while it is open, whichever side ends it. Requests are counted by the status of the response.
func TestKubeWatches(t *testing.T) {
	release := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("watch") == "" {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush() //nolint:forcetypeassert // the standard library's
		<-release
	}))
	k := &kube{metrics: metrics.NewAgent("v")}
	client, err := rest.HTTPClientFor(k.wrap(&rest.Config{Host: server.URL}))
	if err != nil {
		t.Fatal(err)
	}
	get := func(path string) (*http.Response, error) {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		return client.Do(request)
	}
	if err := k.state(); err != nil {
		t.Errorf("before the first watch: %v", err)
	}
	refused, err := get("/nodes")
	if err != nil {
		t.Fatal(err)
	}
	_ = refused.Body.Close()
	first, err := get("/nodes?watch=true")
	if err != nil {
		t.Fatal(err)
	}
	second, err := get("/nodes?watch=1")
	if err != nil {
		t.Fatal(err)
	}
	metricstest.HasLines(t, k.metrics, "weft_kube_watches 2", `weft_kube_requests_total{method="GET",status="200"} 2`, `weft_kube_requests_total{method="GET",status="403"} 1`)
	_ = second.Body.Close()
	_ = second.Body.Close()
	metricstest.HasLines(t, k.metrics, "weft_kube_watches 1")
	if err := k.state(); err != nil {
		t.Errorf("one is open: %v", err)
	}
	close(release)
	if _, err := io.ReadAll(first.Body); err != nil {
		t.Fatal(err)
	}
	metricstest.HasLines(t, k.metrics, "weft_kube_watches 0")
	if err := k.state(); err == nil {
		t.Error("no watch is open, but its metric is missing")
	}
	server.Close()
	if _, err := get("/nodes"); err == nil {
		t.Fatal("an answer without a server")
	}
	metricstest.HasLines(t, k.metrics, `weft_kube_requests_total{method="GET",status="error"} 1`)
}

// Requests are counted by command and code, and so are their steps.
func TestRequestsAreMeasured(t *testing.T) {
	a := &requests{events: &events.Recorder{}, metrics: metrics.NewAgent("v"), traces: noop.NewTracerProvider()}
	for _, outcome := range []error{nil, cni.Errorf(cni.CodeTryAgainLater, "not yet"), context.Canceled} {
		_, done := a.observe(t.Context(), &cni.Request{Command: cni.CommandAdd}, cni.Origin{})
		done(outcome)
	}
	metricstest.HasLines(t, a.metrics, `weft_cni_request_duration_seconds_count{code="0",command="ADD",network="none"} 1`,
		`weft_cni_request_duration_seconds_count{code="11",command="ADD",network="none"} 1`, `weft_cni_request_duration_seconds_count{code="100",command="ADD",network="none"} 1`)
}

// A request counts for the network of its attachment's record, which an ADD creates and a DEL removes.
func TestRequestsCountForTheirNetwork(t *testing.T) {
	store, err := attach.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	a := &requests{events: &events.Recorder{}, metrics: metrics.NewAgent("v"), traces: noop.NewTracerProvider(), store: store}
	record := attach.Record{
		Network: "vpc.0f3c", ContainerID: "c1", IfName: "eth0", Netns: "/run/netns/a", BootID: "b", State: attach.Planned, Created: time.Unix(1, 0),
	}
	request := func(command cni.Command, during func() error) {
		t.Helper()
		ctx, done := a.observe(t.Context(), &cni.Request{Command: command, ContainerID: "c1", IfName: "eth0"}, cni.Origin{})
		_, end := timing.Start(ctx, "test")
		end(nil)
		if err := during(); err != nil {
			t.Fatal(err)
		}
		done(nil)
	}
	request(cni.CommandAdd, func() error { return store.Put(t.Context(), record) })
	request(cni.CommandDel, func() error { return store.Delete(t.Context(), record.Key()) })
	request(cni.CommandDel, func() error { return nil })
	metricstest.HasLines(t, a.metrics, `weft_cni_request_duration_seconds_count{code="0",command="ADD",network="vpc"} 1`,
		`weft_cni_request_duration_seconds_count{code="0",command="DEL",network="vpc"} 1`,
		`weft_cni_request_duration_seconds_count{code="0",command="DEL",network="none"} 1`,
		`weft_cni_step_duration_seconds_count{command="ADD",network="vpc",step="test"} 1`)
}

// While something of the node cannot be restored, the agent is not ready.
func TestReadyOnlyIfTheNodeIsKept(t *testing.T) {
	a := &agent{health: &health.Server{}}
	failure := errors.New("sysctls: read-only file system")
	a.kept = func() error { return failure }
	a.watchNode(&engines.Engines{Kernel: &engines.Kernel{}}, func() error { return nil })
	ready := func() (int, string) {
		answer := httptest.NewRecorder()
		a.health.Handler().ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/readyz/node", nil))
		return answer.Code, answer.Body.String()
	}
	if code, body := ready(); code != http.StatusServiceUnavailable || !strings.Contains(body, failure.Error()) {
		t.Errorf("%d %s", code, body)
	}
	failure = nil
	if code, body := ready(); code != http.StatusOK {
		t.Errorf("restored: %d %s", code, body)
	}
}

// A warning is reported, and the agent is still ready.
func TestReadyWithWarning(t *testing.T) {
	h := &health.Server{}
	h.Add(health.Check{Name: "network", Run: func() error { return nil }})
	h.Warn(health.Check{Name: "host-firewall", Run: func() error { return errors.New("chain c drops") }})
	answer := httptest.NewRecorder()
	h.Handler().ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/readyz", nil))
	if want := "[+]network\n[!]host-firewall: chain c drops\n"; answer.Code != http.StatusOK || answer.Body.String() != want {
		t.Errorf("%d %s", answer.Code, answer.Body)
	}
}
