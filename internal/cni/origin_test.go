package cni

import (
	"net/http"
	"testing"
	"time"
)

// A request's origin is passed to the observer, but only its plausible parts.
func TestOriginIsReported(t *testing.T) {
	started := time.Now().Add(-time.Second)
	for name, c := range map[string]struct{ sent, want Origin }{
		"nothing": {},
		"all":     {Origin{"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", started}, Origin{"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", started}},
		"future":  {Origin{Started: time.Now().Add(time.Hour)}, Origin{}},
		"lines":   {Origin{TraceParent: "00\r\nHost: other"}, Origin{}},
		"old":     {Origin{Started: time.Now().Add(-time.Hour)}, Origin{}},
	} {
		header := http.Header{}
		c.sent.set(header.Set)
		if got := OriginOf(header.Get); got.TraceParent != c.want.TraceParent || !got.Started.Equal(c.want.Started) {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
	if got := OriginOf(http.Header{headerStarted: {"soon"}}.Get); !got.Started.IsZero() {
		t.Errorf("of no number: %+v", got)
	}
}
