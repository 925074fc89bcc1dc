// Package timing measures the steps of a request. It reports them to the context's observer, for metrics, and to the OpenTelemetry span
// of the request. Without both, it costs two look-ups in the context.
package timing

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// scope names the instrumentation in spans.
const scope = "weft.dev/weft"

// Observer is called with the duration of each step.
type Observer func(step string, took time.Duration)

// observerKey is the key of the observer in a context.
type observerKey struct{}

// With returns a context whose steps are reported to observe. observe may be called concurrently.
func With(ctx context.Context, observe Observer) context.Context {
	return context.WithValue(ctx, observerKey{}, observe)
}

// Start begins a step. Use the returned context within the step; end ends it with its error.
func Start(ctx context.Context, step string, attributes ...attribute.KeyValue) (_ context.Context, end func(error)) {
	begin := time.Now()
	ctx, span := Tracer(ctx).Start(ctx, step, trace.WithTimestamp(begin), trace.WithAttributes(attributes...))
	return ctx, func(err error) {
		now := time.Now()
		if observe, ok := ctx.Value(observerKey{}).(Observer); ok {
			observe(step, now.Sub(begin))
		}
		End(span, err, now)
	}
}

// Run runs a step.
func Run(ctx context.Context, step string, run func(context.Context) error) error {
	ctx, end := Start(ctx, step)
	err := run(ctx)
	end(err)
	return err
}

// Record reports a step that is already over, as a span only.
func Record(ctx context.Context, step string, begin, end time.Time, attributes ...attribute.KeyValue) {
	_, span := Tracer(ctx).Start(ctx, step, trace.WithTimestamp(begin), trace.WithAttributes(attributes...))
	span.End(trace.WithTimestamp(end))
}

// Tracer returns a tracer for children of the context's span. Without a span, the children are no-ops.
func Tracer(ctx context.Context) trace.Tracer {
	return trace.SpanFromContext(ctx).TracerProvider().Tracer(scope)
}

// End ends a span at a time, with its error.
func End(span trace.Span, err error, at time.Time) {
	if err != nil {
		span.SetStatus(codes.Error, err.Error())
	}
	span.End(trace.WithTimestamp(at))
}
