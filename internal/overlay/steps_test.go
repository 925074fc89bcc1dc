package overlay

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"weft.dev/weft/internal/timing"
)

// watched runs a request under a span and an observer, and returns the paths of the spans below it and the observed steps.
func watched(t *testing.T, request func(context.Context) error) (paths, steps []string) {
	t.Helper()
	exporter := tracetest.NewInMemoryExporter()
	ctx, root := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter)).Tracer("test").Start(t.Context(), "request")
	var mu sync.Mutex
	reported := map[string]bool{}
	err := request(timing.With(ctx, func(step string, _ time.Duration) {
		mu.Lock()
		defer mu.Unlock()
		reported[step] = true
	}))
	if err != nil {
		t.Fatal(err)
	}
	root.End()
	spans := map[string]tracetest.SpanStub{}
	for _, span := range exporter.GetSpans() {
		spans[span.SpanContext.SpanID().String()] = span
	}
	for _, span := range spans {
		path := []string{span.Name}
		for up, ok := spans[span.Parent.SpanID().String()]; ok; up, ok = spans[up.Parent.SpanID().String()] {
			path = append([]string{up.Name}, path...)
		}
		paths = append(paths, strings.Join(path, "/"))
	}
	slices.Sort(paths)
	return slices.Compact(paths), slices.Sorted(maps.Keys(reported))
}

// ADD and DEL report their steps and the commits that they waited for: as a tree of spans, and to the observer.
func TestStepsAreReported(t *testing.T) {
	l := start(t)
	req := l.request("s1")
	paths, steps := watched(t, func(ctx context.Context) error { _, err := l.Add(ctx, req); return err })
	want := []string{
		"request", "request/connect", "request/connect/flows", "request/connect/flows/commit", "request/connect/link",
		"request/connect/port", "request/connect/port/commit", "request/connect/record", "request/place", "request/plan", "request/record",
	}
	if diff := cmp.Diff(want, paths); diff != "" {
		t.Errorf("spans of ADD (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"connect", "flows", "link", "place", "plan", "port", "record"}, steps); diff != "" {
		t.Errorf("steps of ADD (-want +got):\n%s", diff)
	}
	if used, all := l.Addresses(); used != 1 || all != 509 {
		t.Errorf("%d of %d addresses", used, all)
	}
	paths, steps = watched(t, func(ctx context.Context) error { return l.Del(ctx, req) })
	if diff := cmp.Diff([]string{"request", "request/flows", "request/flows/commit", "request/record"}, paths); diff != "" {
		t.Errorf("spans of DEL (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"flows", "record"}, steps); diff != "" {
		t.Errorf("steps of DEL (-want +got):\n%s", diff)
	}
}
