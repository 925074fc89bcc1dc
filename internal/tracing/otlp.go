package tracing

import (
	"math"
	"strconv"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/instrumentation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// The messages of opentelemetry/proto/trace/v1/trace.proto and collector/trace/v1/trace_service.proto, in OTLP's JSON encoding: field names
// in lowerCamelCase, ids in hex, 64-bit integers as strings, enums as numbers. Fields with their zero value may be left out.
type (
	// exportRequest is ExportTraceServiceRequest.
	exportRequest struct {
		ResourceSpans []resourceSpans `json:"resourceSpans"`
	}
	resourceSpans struct {
		Resource   resourceMessage `json:"resource"`
		ScopeSpans []*scopeSpans   `json:"scopeSpans"`
		SchemaURL  string          `json:"schemaUrl,omitempty"`
	}
	resourceMessage struct {
		Attributes []keyValue `json:"attributes,omitempty"`
	}
	scopeSpans struct {
		Scope     scope         `json:"scope"`
		Spans     []spanMessage `json:"spans"`
		SchemaURL string        `json:"schemaUrl,omitempty"`
	}
	scope struct {
		Name       string     `json:"name"`
		Version    string     `json:"version,omitempty"`
		Attributes []keyValue `json:"attributes,omitempty"`
	}
	spanMessage struct {
		TraceID           string      `json:"traceId"`
		SpanID            string      `json:"spanId"`
		TraceState        string      `json:"traceState,omitempty"`
		ParentSpanID      string      `json:"parentSpanId,omitempty"`
		Flags             uint32      `json:"flags,omitempty"`
		Name              string      `json:"name"`
		Kind              int         `json:"kind"`
		Start             nanos       `json:"startTimeUnixNano"`
		End               nanos       `json:"endTimeUnixNano"`
		Attributes        []keyValue  `json:"attributes,omitempty"`
		DroppedAttributes int         `json:"droppedAttributesCount,omitempty"`
		Events            []spanEvent `json:"events,omitempty"`
		DroppedEvents     int         `json:"droppedEventsCount,omitempty"`
		Links             []spanLink  `json:"links,omitempty"`
		DroppedLinks      int         `json:"droppedLinksCount,omitempty"`
		Status            spanStatus  `json:"status"`
	}
	spanEvent struct {
		Time              nanos      `json:"timeUnixNano"`
		Name              string     `json:"name"`
		Attributes        []keyValue `json:"attributes,omitempty"`
		DroppedAttributes int        `json:"droppedAttributesCount,omitempty"`
	}
	spanLink struct {
		TraceID           string     `json:"traceId"`
		SpanID            string     `json:"spanId"`
		TraceState        string     `json:"traceState,omitempty"`
		Attributes        []keyValue `json:"attributes,omitempty"`
		DroppedAttributes int        `json:"droppedAttributesCount,omitempty"`
		Flags             uint32     `json:"flags,omitempty"`
	}
	spanStatus struct {
		Message string `json:"message,omitempty"`
		Code    int    `json:"code,omitempty"`
	}
	keyValue struct {
		Key   string   `json:"key"`
		Value anyValue `json:"value"`
	}
	// anyValue is AnyValue: an object with one key, which is the type.
	anyValue map[string]any
	// nanos is a time since 1970, in nanoseconds.
	nanos string
)

// Bits of Span.flags and Link.flags above the eight of W3C Trace Context.
const (
	flagHasIsRemote = 1 << 8
	flagIsRemote    = 1 << 9
)

// encode returns the request that exports spans of one provider, which share its resource.
func encode(spans []sdktrace.ReadOnlySpan) exportRequest {
	if len(spans) == 0 {
		return exportRequest{ResourceSpans: []resourceSpans{}}
	}
	from := spans[0].Resource()
	all := resourceSpans{Resource: resourceMessage{keyValues(from.Attributes())}, SchemaURL: from.SchemaURL()}
	scopes := map[instrumentation.Scope]*scopeSpans{}
	for _, span := range spans {
		in := span.InstrumentationScope()
		found, ok := scopes[in]
		if !ok {
			found = &scopeSpans{Scope: scope{in.Name, in.Version, keyValues(in.Attributes.ToSlice())}, SchemaURL: in.SchemaURL}
			scopes[in] = found
			all.ScopeSpans = append(all.ScopeSpans, found)
		}
		found.Spans = append(found.Spans, spanOf(span))
	}
	return exportRequest{ResourceSpans: []resourceSpans{all}}
}

func spanOf(span sdktrace.ReadOnlySpan) spanMessage {
	at, parent, status := span.SpanContext(), span.Parent(), span.Status()
	message := spanMessage{
		TraceID: at.TraceID().String(), SpanID: at.SpanID().String(), TraceState: at.TraceState().String(),
		Flags: flags(at.TraceFlags(), parent), Name: span.Name(), Kind: kindOf(span.SpanKind()),
		Start: unixNanos(span.StartTime()), End: unixNanos(span.EndTime()),
		Attributes: keyValues(span.Attributes()), DroppedAttributes: span.DroppedAttributes(),
		DroppedEvents: span.DroppedEvents(), DroppedLinks: span.DroppedLinks(),
		Status: spanStatus{Message: status.Description, Code: statusCode(status.Code)},
	}
	if parent.SpanID().IsValid() {
		message.ParentSpanID = parent.SpanID().String()
	}
	for _, event := range span.Events() {
		message.Events = append(message.Events, spanEvent{
			unixNanos(event.Time), event.Name, keyValues(event.Attributes), event.DroppedAttributeCount,
		})
	}
	for _, link := range span.Links() {
		to := link.SpanContext
		message.Links = append(message.Links, spanLink{
			to.TraceID().String(), to.SpanID().String(), to.TraceState().String(),
			keyValues(link.Attributes), link.DroppedAttributeCount, flags(to.TraceFlags(), to),
		})
	}
	return message
}

// flags returns trace flags, with the bit that says whether another span, the parent or the linked one, belongs to another process.
func flags(own trace.TraceFlags, other trace.SpanContext) uint32 {
	bits := uint32(own) | flagHasIsRemote
	if other.IsRemote() {
		bits |= flagIsRemote
	}
	return bits
}

// kindOf returns the number of Span.SpanKind.
func kindOf(kind trace.SpanKind) int {
	switch kind {
	case trace.SpanKindInternal:
		return 1
	case trace.SpanKindServer:
		return 2
	case trace.SpanKindClient:
		return 3
	case trace.SpanKindProducer:
		return 4
	case trace.SpanKindConsumer:
		return 5
	}
	return 0
}

// statusCode returns the number of Status.StatusCode, whose order is not the library's.
func statusCode(code codes.Code) int {
	switch code {
	case codes.Ok:
		return 1
	case codes.Error:
		return 2
	}
	return 0
}

func unixNanos(t time.Time) nanos { return nanos(strconv.FormatInt(max(0, t.UnixNano()), 10)) }

func keyValues(attributes []attribute.KeyValue) []keyValue {
	pairs := make([]keyValue, len(attributes))
	for i, pair := range attributes {
		pairs[i] = keyValue{string(pair.Key), valueOf(pair.Value)}
	}
	return pairs
}

func valueOf(v attribute.Value) anyValue {
	switch v.Type() {
	case attribute.BOOL:
		return anyValue{"boolValue": v.AsBool()}
	case attribute.INT64:
		return anyValue{"intValue": strconv.FormatInt(v.AsInt64(), 10)}
	case attribute.FLOAT64:
		return anyValue{"doubleValue": double(v.AsFloat64())}
	case attribute.STRING:
		return anyValue{"stringValue": v.AsString()}
	case attribute.BYTESLICE:
		return anyValue{"bytesValue": v.AsByteSlice()} // base64
	case attribute.BOOLSLICE:
		return arrayOf(v.AsBoolSlice(), attribute.BoolValue)
	case attribute.INT64SLICE:
		return arrayOf(v.AsInt64Slice(), attribute.Int64Value)
	case attribute.FLOAT64SLICE:
		return arrayOf(v.AsFloat64Slice(), attribute.Float64Value)
	case attribute.STRINGSLICE:
		return arrayOf(v.AsStringSlice(), attribute.StringValue)
	case attribute.SLICE:
		return arrayOf(v.AsSlice(), func(v attribute.Value) attribute.Value { return v })
	case attribute.MAP:
		return anyValue{"kvlistValue": map[string]any{"values": keyValues(v.AsMap())}}
	}
	return anyValue{} // empty
}

func arrayOf[T any](from []T, value func(T) attribute.Value) anyValue {
	values := make([]anyValue, len(from))
	for i, v := range from {
		values[i] = valueOf(value(v))
	}
	return anyValue{"arrayValue": map[string]any{"values": values}}
}

// double returns a number, or the name that JSON has for it if it is not finite.
func double(f float64) any {
	switch {
	case math.IsNaN(f):
		return "NaN"
	case math.IsInf(f, 1):
		return "Infinity"
	case math.IsInf(f, -1):
		return "-Infinity"
	}
	return f
}
