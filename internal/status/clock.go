package status

import (
	"net/http"
	"sync/atomic"
	"time"
)

// serverClock returns the API server's time, taken from its responses: the clock of this machine may differ.
type serverClock struct {
	ahead atomic.Int64 // nanoseconds
}

func (c *serverClock) now() time.Time { return time.Now().Add(time.Duration(c.ahead.Load())) }

// wrap returns a transport that records the time in each response.
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
