package cni

import (
	"strconv"
	"time"
)

// Headers with the origin of a request. An agent that does not support them serves the request all the same.
const (
	headerTraceParent = "Traceparent" // as in W3C Trace Context
	headerStarted     = "Weft-Started"
)

// maxAge is the maximum age of a plugin's start time. An older time, or one in the future, is ignored.
const maxAge = 5 * time.Minute

// Origin is the origin of a request, for tracing. It has no effect on the request.
type Origin struct {
	// TraceParent is the span in which the runtime executed the plugin, in the form of W3C Trace Context; empty if the runtime set none. It
	// is not checked.
	TraceParent string
	// Started is the time when the plugin started; zero if unknown.
	Started time.Time
}

// set passes the headers to send to header.
func (o Origin) set(header func(name, value string)) {
	if o.TraceParent != "" && isPrintable(o.TraceParent) {
		header(headerTraceParent, o.TraceParent)
	}
	if !o.Started.IsZero() {
		header(headerStarted, strconv.FormatInt(o.Started.UnixNano(), 10))
	}
}

// OriginOf reads the origin from a request's headers.
func OriginOf(header func(name string) string) Origin {
	origin := Origin{TraceParent: header(headerTraceParent)}
	if ns, err := strconv.ParseInt(header(headerStarted), 10, 64); err == nil {
		started := time.Unix(0, ns)
		if age := time.Since(started); age >= 0 && age < maxAge {
			origin.Started = started
		}
	}
	return origin
}
