package agent

import (
	"errors"
	"testing"
	"time"

	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"weft.dev/weft/internal/agent/events"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/metrics"
	"weft.dev/weft/internal/metrics/metricstest"
	"weft.dev/weft/internal/timing"
)

// The spans of a request are connected: the runtime's, the plugin's from its start, the agent's and those of its steps.
func TestRequestIsTraced(t *testing.T) {
	exporter := tracetest.NewInMemoryExporter()
	a := &requests{events: &events.Recorder{}, metrics: metrics.NewAgent("v"), traces: sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter))}
	started := time.Now().Add(-20 * time.Millisecond)
	origin := cni.Origin{TraceParent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", Started: started}
	ctx, done := a.observe(t.Context(), &cni.Request{Command: cni.CommandAdd}, origin)
	_, linked := timing.Start(ctx, "link")
	linked(nil)
	done(errors.New("no room"))
	spans := map[string]tracetest.SpanStub{}
	for _, span := range exporter.GetSpans() {
		spans[span.Name] = span
		if got := span.SpanContext.TraceID().String(); got != "0af7651916cd43dd8448eb211c80319c" {
			t.Errorf("%s is in trace %s", span.Name, got)
		}
	}
	parent := func(name string) string { return spans[name].Parent.SpanID().String() }
	id := func(name string) string { return spans[name].SpanContext.SpanID().String() }
	if len(spans) != 3 || parent("weft-cni ADD") != "b7ad6b7169203331" || parent("ADD") != id("weft-cni ADD") || parent("link") != id("ADD") {
		t.Errorf("spans %v", spans)
	}
	if !spans["weft-cni ADD"].StartTime.Equal(started) || spans["ADD"].Status.Code != codes.Error || spans["link"].Status.Code == codes.Error {
		t.Errorf("spans %v", spans)
	}
	metricstest.HasLines(t, a.metrics, `weft_cni_step_duration_seconds_count{command="ADD",network="none",step="link"} 1`)
}

// An invalid trace parent from the plugin does not fail the request, and is ignored.
func TestWrongTraceParentIsIgnored(t *testing.T) {
	exporter := tracetest.NewInMemoryExporter()
	a := &requests{events: &events.Recorder{}, metrics: metrics.NewAgent("v"), traces: sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter))}
	_, done := a.observe(t.Context(), &cni.Request{Command: cni.CommandDel}, cni.Origin{TraceParent: "00-zz-yy-01"})
	done(nil)
	if spans := exporter.GetSpans(); len(spans) != 1 || spans[0].Parent.IsValid() {
		t.Errorf("spans %v", spans)
	}
}
