package cni

import (
	"strconv"
	"time"
)

// Headers of a request that say where it comes from. An agent that does not know them serves it all the same.
const (
	headerTraceParent = "Traceparent" // as in W3C Trace Context
	headerStarted     = "Weft-Started"
)

// maxAge is how long ago a plugin may say that it was started; what is older, or to come, is not believed.
const maxAge = 5 * time.Minute

// Origin is where a request comes from, for whoever traces it. Nothing in it changes what is done.
type Origin struct {
	// TraceParent is the span that the runtime executed the plugin in, in the form of W3C Trace Context; empty when the
	// runtime did not say. It is not checked.
	TraceParent string
	// Started is when the plugin began; zero when it did not say.
	Started time.Time
}

// set hands over the headers to send.
func (o Origin) set(header func(name, value string)) {
	if o.TraceParent != "" && isPrintable(o.TraceParent) {
		header(headerTraceParent, o.TraceParent)
	}
	if !o.Started.IsZero() {
		header(headerStarted, strconv.FormatInt(o.Started.UnixNano(), 10))
	}
}

// OriginOf reads the headers of a request.
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
