// Package timing tells how long the steps of a request took, to whoever asked for it by the context: to an observer, for
// metrics, and to the span of OpenTelemetry that the request has. Where nobody asked, it costs two look-ups in the context.
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

// Observer is told how long a step took.
type Observer func(step string, took time.Duration)

// observerKey is the observer's key in a context.
type observerKey struct{}

// With returns a context whose steps observe is told of. It may be called from several goroutines.
func With(ctx context.Context, observe Observer) context.Context {
	return context.WithValue(ctx, observerKey{}, observe)
}

// Start begins a step. What is done within it is done with the context returned; end ends it, with what it ended with.
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

// Record tells of a step that is over, as a span only.
func Record(ctx context.Context, step string, begin, end time.Time, attributes ...attribute.KeyValue) {
	_, span := Tracer(ctx).Start(ctx, step, trace.WithTimestamp(begin), trace.WithAttributes(attributes...))
	span.End(trace.WithTimestamp(end))
}

// Tracer returns what makes the children of the context's span. Without a span they are nothing.
func Tracer(ctx context.Context) trace.Tracer {
	return trace.SpanFromContext(ctx).TracerProvider().Tracer(scope)
}

// End ends a span at a time, with what it ended with.
func End(span trace.Span, err error, at time.Time) {
	if err != nil {
		span.SetStatus(codes.Error, err.Error())
	}
	span.End(trace.WithTimestamp(at))
}
