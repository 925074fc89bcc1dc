package tracing

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"weft.dev/weft/internal/timing"
)

// The messages as a collector expects them, by the specification of OTLP's JSON and the message definitions.
type (
	wireValue map[string]any
	wirePairs []struct {
		Key   string
		Value wireValue
	}
	wireSpan struct {
		TraceID      string `json:"traceId"`
		SpanID       string `json:"spanId"`
		ParentSpanID string `json:"parentSpanId"`
		Flags        uint32 `json:"flags"`
		Name         string `json:"name"`
		Kind         int    `json:"kind"`
		Start        string `json:"startTimeUnixNano"`
		End          string `json:"endTimeUnixNano"`
		Attributes   wirePairs
		Events       []struct {
			Time       string `json:"timeUnixNano"`
			Name       string `json:"name"`
			Attributes wirePairs
		}
		Links []struct {
			TraceID string `json:"traceId"`
			SpanID  string `json:"spanId"`
			Flags   uint32 `json:"flags"`
		}
		Status struct {
			Message string `json:"message"`
			Code    int    `json:"code"`
		}
	}
	wireRequest struct {
		ResourceSpans []struct {
			Resource   struct{ Attributes wirePairs }
			ScopeSpans []struct {
				Scope struct{ Name, Version string }
				Spans []wireSpan
			}
		}
	}
)

// receiver is a collector that accepts posted spans, and refuses what the specification does not define.
type receiver struct {
	mu       sync.Mutex
	resource map[string]any
	spans    map[string]wireSpan
	count    int
	headers  http.Header
	path     string
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if err := r.take(req); err != nil {
		w.WriteHeader(http.StatusBadRequest)
		json.NewEncoder(w).Encode(map[string]string{"message": err.Error()}) //nolint:errcheck // the client reads it or not
	}
}

var (
	traceID = regexp.MustCompile(`^[0-9a-f]{32}$`)
	spanID  = regexp.MustCompile(`^[0-9a-f]{16}$`)
)

func (r *receiver) take(req *http.Request) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if req.Method != http.MethodPost || req.Header.Get("Content-Type") != "application/json" {
		return fmt.Errorf("%s of %s", req.Method, req.Header.Get("Content-Type"))
	}
	decoder := json.NewDecoder(req.Body)
	decoder.DisallowUnknownFields()
	var request wireRequest
	if err := decoder.Decode(&request); err != nil {
		return err
	}
	r.headers, r.path = req.Header, req.URL.Path
	for _, resource := range request.ResourceSpans {
		r.resource = plain(resource.Resource.Attributes)
		for _, scope := range resource.ScopeSpans {
			for _, span := range scope.Spans {
				_, wrongStart := strconv.ParseUint(span.Start, 10, 64)
				_, wrongEnd := strconv.ParseUint(span.End, 10, 64)
				parent := span.ParentSpanID == "" || spanID.MatchString(span.ParentSpanID)
				if !traceID.MatchString(span.TraceID) || !spanID.MatchString(span.SpanID) || !parent || wrongStart != nil || wrongEnd != nil {
					return fmt.Errorf("span %+v", span)
				}
				r.spans[scope.Scope.Name+" "+span.Name] = span
				r.count++
			}
		}
	}
	return nil
}

func plain(pairs wirePairs) map[string]any {
	all := map[string]any{}
	for _, pair := range pairs {
		for kind, value := range pair.Value {
			all[pair.Key+" "+kind] = value
		}
	}
	return all
}

func newReceiver(t *testing.T) (*receiver, *httptest.Server) {
	t.Helper()
	r := &receiver{spans: map[string]wireSpan{}}
	server := httptest.NewServer(r)
	t.Cleanup(server.Close)
	return r, server
}

func environment(pairs ...string) func(string) string {
	values := map[string]string{}
	for _, pair := range pairs {
		name, value, _ := strings.Cut(pair, "=")
		values[name] = value
	}
	return func(name string) string { return values[name] }
}

// Spans arrive at the collector in the standard environment variables, with all their data.
func TestSpansArrive(t *testing.T) {
	r, server := newReceiver(t)
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "k8s.cluster.name=east")
	t.Setenv("OTEL_SERVICE_NAME", "network")
	provider, err := New(Config{
		Sampling: 1, Service: "weft-agent", Version: "v1", Node: "n1",
		Getenv: environment("OTEL_EXPORTER_OTLP_ENDPOINT="+server.URL+"/base/", "OTEL_EXPORTER_OTLP_HEADERS=x-team=a%20b, x-other = c"),
	})
	if err != nil {
		t.Fatal(err)
	}
	remote := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{0xab}, SpanID: trace.SpanID{0xcd}, TraceFlags: trace.FlagsSampled, Remote: true})
	ctx, root := provider.Tracer("test").Start(trace.ContextWithRemoteSpanContext(t.Context(), remote), "ADD",
		trace.WithSpanKind(trace.SpanKindServer), trace.WithLinks(trace.Link{SpanContext: remote}),
		trace.WithAttributes(attribute.Int64("big", 1<<62), attribute.Bool("yes", true), attribute.Float64("half", .5),
			attribute.String("text", "ä\xff"), attribute.Int64Slice("list", []int64{1, 2}), attribute.ByteSlice("raw", []byte("raw"))))
	_, done := timing.Start(ctx, "link")
	done(nil)
	root.AddEvent("retried", trace.WithAttributes(attribute.Int("try", 2)))
	root.SetStatus(codes.Error, "no room")
	root.End()
	if err := provider.Shutdown(context.WithoutCancel(t.Context())); err != nil {
		t.Fatal(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	add, link := r.spans["test ADD"], r.spans["weft.dev/weft link"]
	if r.path != "/base/v1/traces" || r.headers.Get("X-Team") != "a b" || r.headers.Get("X-Other") != "c" {
		t.Errorf("posted to %s with %v", r.path, r.headers)
	}
	if r.count != 2 || add.ParentSpanID != "cd00000000000000" || link.ParentSpanID != add.SpanID || add.TraceID != "ab000000000000000000000000000000" {
		t.Errorf("spans %+v", r.spans)
	}
	if add.Kind != 2 || link.Kind != 1 || add.Status.Code != 2 || add.Status.Message != "no room" || link.Status.Code != 0 {
		t.Errorf("kind and status: %+v, %+v", add, link)
	}
	if add.Flags != 0x301 || link.Flags != 0x101 {
		t.Errorf("flags %x, %x", add.Flags, link.Flags)
	}
	if len(add.Events) != 1 || add.Events[0].Name != "retried" || plain(add.Events[0].Attributes)["try intValue"] != "2" {
		t.Errorf("events %+v", add.Events)
	}
	if len(add.Links) != 1 || add.Links[0].SpanID != "cd00000000000000" {
		t.Errorf("links %+v", add.Links)
	}
	want := map[string]any{
		"big intValue": "4611686018427387904", "yes boolValue": true, "half doubleValue": .5, "text stringValue": "ä�",
		"list arrayValue": map[string]any{"values": []any{map[string]any{"intValue": "1"}, map[string]any{"intValue": "2"}}},
		"raw bytesValue":  "cmF3",
	}
	if diff := cmp.Diff(want, plain(add.Attributes)); diff != "" {
		t.Errorf("attributes (-want +got):\n%s", diff)
	}
	want = map[string]any{
		"service.name stringValue": "network", "service.version stringValue": "v1",
		"k8s.node.name stringValue": "n1", "k8s.cluster.name stringValue": "east",
	}
	if diff := cmp.Diff(want, r.resource); diff != "" {
		t.Errorf("resource (-want +got):\n%s", diff)
	}
}

// Ending a span never waits for a collector that hangs. Spans that do not fit into the queue are dropped.
func TestNoCallerWaitsForTheCollector(t *testing.T) {
	r := &receiver{spans: map[string]wireSpan{}}
	asked, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		if err != nil {
			t.Error(err)
		}
		req.Body = io.NopCloser(strings.NewReader(string(body)))
		once.Do(func() { close(asked) })
		<-release
		r.ServeHTTP(w, req)
	}))
	defer server.Close()
	provider, err := New(Config{Sampling: 1, Getenv: environment("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT="+server.URL+"/in", "OTEL_EXPORTER_OTLP_TIMEOUT=600000")})
	if err != nil {
		t.Fatal(err)
	}
	end := func(spans int) {
		for range spans {
			_, span := provider.Tracer("test").Start(t.Context(), "ADD")
			span.End()
		}
	}
	const batch = 512 // the batcher's default
	end(batch)
	<-asked
	end(3 * queue)
	close(release)
	if err := provider.Shutdown(context.WithoutCancel(t.Context())); err != nil {
		t.Fatal(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.count != batch+queue || r.path != "/in" {
		t.Errorf("%d spans at %s, want %d", r.count, r.path, batch+queue)
	}
}

func TestSamplingIsAPart(t *testing.T) {
	for _, sampling := range []string{"-0.1", "2", "NaN"} {
		part, err := strconv.ParseFloat(sampling, 64)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := New(Config{Sampling: part}); err == nil {
			t.Errorf("%s is taken", sampling)
		}
	}
}

// Errors in the environment name the variable, and do not contain secrets from headers and addresses.
func TestEnvironmentIsChecked(t *testing.T) {
	for variable, want := range map[string]string{
		"OTEL_EXPORTER_OTLP_ENDPOINT=collector:4318":              "OTEL_EXPORTER_OTLP_ENDPOINT: it is",
		"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://u:secret@h:x/": "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: it is",
		"OTEL_EXPORTER_OTLP_HEADERS=a=b,secret":                   "OTEL_EXPORTER_OTLP_HEADERS: header 2",
		"OTEL_EXPORTER_OTLP_TRACES_HEADERS=a=secret%0d%0ab":       "OTEL_EXPORTER_OTLP_TRACES_HEADERS: header 1",
		"OTEL_EXPORTER_OTLP_TIMEOUT=10s":                          "OTEL_EXPORTER_OTLP_TIMEOUT=10s: it is a number of milliseconds",
		"OTEL_EXPORTER_OTLP_PROTOCOL=grpc":                        "OTEL_EXPORTER_OTLP_PROTOCOL=grpc: only http/json",
		"OTEL_EXPORTER_OTLP_CERTIFICATE=/dev/null":                "OTEL_EXPORTER_OTLP_CERTIFICATE: /dev/null: it has no PEM certificate",
	} {
		_, err := New(Config{Sampling: 1, Getenv: environment(variable)})
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v, want %s", variable, err, want)
		}
	}
	to, err := collectorOf(environment())
	if err != nil || to.url.String() != "http://localhost:4318/v1/traces" || to.timeout != defaultTimeout {
		t.Errorf("by default %+v, %v", to, err)
	}
}
