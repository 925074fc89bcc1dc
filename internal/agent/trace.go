package agent

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/timing"
)

// traceRequest starts the spans of a request. The plugin's span begins when the plugin was started. The plugin creates no spans itself, to
// stay small, so the agent does; the plugin's last milliseconds, after the answer, are not included. The agent's span is its child.
func (a *agent) traceRequest(ctx context.Context, req *cni.Request, origin cni.Origin) (context.Context, func(error)) {
	carrier := propagation.MapCarrier{"traceparent": origin.TraceParent}
	ctx = propagation.TraceContext{}.Extract(ctx, carrier)
	tracer := a.opts.Traces.Tracer("weft.dev/weft")
	about := trace.WithAttributes(
		attribute.String("cni.container.id", req.ContainerID), attribute.String("cni.interface", req.IfName),
		attribute.String("k8s.namespace.name", req.Args.PodNamespace), attribute.String("k8s.pod.name", req.Args.PodName),
	)
	var spans []trace.Span
	if !origin.Started.IsZero() {
		var plugin trace.Span
		ctx, plugin = tracer.Start(ctx, "weft-cni "+string(req.Command), about,
			trace.WithTimestamp(origin.Started), trace.WithSpanKind(trace.SpanKindClient))
		spans = append(spans, plugin)
	}
	ctx, request := tracer.Start(ctx, string(req.Command), about, trace.WithSpanKind(trace.SpanKindServer))
	spans = append(spans, request)
	return ctx, func(err error) {
		now := time.Now()
		for _, span := range spans {
			timing.End(span, err, now)
		}
	}
}
