package agent

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"weft.dev/weft/internal/agent/events"
	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/metrics"
	"weft.dev/weft/internal/network"
	"weft.dev/weft/internal/timing"
)

// requests measures the requests of the container runtime, traces them, and reports those that fail.
type requests struct {
	// store has the attachments' networks; nil before it is open.
	store   *attach.Store
	metrics *metrics.Agent
	events  *events.Recorder
	traces  trace.TracerProvider
}

// observe starts the measurement of a request of the container runtime. The returned function ends it.
func (r *requests) observe(ctx context.Context, req *cni.Request, origin cni.Origin) (context.Context, func(error)) {
	begin := time.Now()
	command := string(req.Command)
	ctx, traced := r.traceRequest(ctx, req, origin)
	steps := &requestSteps{}
	ctx = timing.With(ctx, steps.took)
	network := r.networkOf(req)
	return ctx, func(err error) {
		var code cni.Code
		if failure := cni.AsError(err); failure != nil {
			code = failure.Code
		}
		if network == metrics.NoNetwork {
			network = r.networkOf(req)
		}
		for _, s := range steps.all() {
			r.metrics.Step(network, command, s.name, s.took)
		}
		r.metrics.Request(network, command, uint(code), time.Since(begin))
		traced(err)
		r.events.Request(req, err)
	}
}

// networkOf returns the network of a request's attachment, from its record.
func (r *requests) networkOf(req *cni.Request) string {
	if r.store == nil {
		return metrics.NoNetwork
	}
	record, err := r.store.Get(attach.Key{ContainerID: req.ContainerID, IfName: req.IfName})
	if err != nil {
		return metrics.NoNetwork
	}
	return nameOf(&record)
}

// nameOf returns the value of the label network for a record: the kind of its network. Some kinds have one network for each object.
func nameOf(record *attach.Record) string {
	return cmp.Or(network.KindOf(record.Network), metrics.NoNetwork)
}

// requestSteps are the steps of a request. They are counted at its end, because its network is not always known at the beginning.
type requestSteps struct {
	mu    sync.Mutex
	steps []requestStep
}

type requestStep struct {
	name string
	took time.Duration
}

func (r *requestSteps) took(name string, took time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.steps = append(r.steps, requestStep{name, took})
}

func (r *requestSteps) all() []requestStep {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.steps)
}

// traceRequest starts the spans of a request. The plugin's span begins when the plugin was started. The plugin creates no spans itself, to
// stay small, so the agent does; the plugin's last milliseconds, after the answer, are not included. The agent's span is its child.
func (r *requests) traceRequest(ctx context.Context, req *cni.Request, origin cni.Origin) (context.Context, func(error)) {
	carrier := propagation.MapCarrier{"traceparent": origin.TraceParent}
	ctx = propagation.TraceContext{}.Extract(ctx, carrier)
	tracer := r.traces.Tracer("weft.dev/weft")
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
