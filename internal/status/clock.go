package status

import (
	"net/http"
	"sync/atomic"
	"time"
)

// serverClock tells the API server's time, as its answers carry it: whoever asks may be on a machine with another.
type serverClock struct {
	ahead atomic.Int64 // nanoseconds
}

func (c *serverClock) now() time.Time { return time.Now().Add(time.Duration(c.ahead.Load())) }

// wrap returns a transport that notes the time of each answer.
func (c *serverClock) wrap(inner http.RoundTripper) http.RoundTripper {
	return roundTripper(func(request *http.Request) (*http.Response, error) {
		answer, err := inner.RoundTrip(request)
		if err == nil {
			if at, parseErr := http.ParseTime(answer.Header.Get("Date")); parseErr == nil {
				c.ahead.Store(int64(time.Until(at)))
			}
		}
		return answer, err
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (f roundTripper) RoundTrip(request *http.Request) (*http.Response, error) { return f(request) }
