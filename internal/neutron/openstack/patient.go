package openstack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"
)

// Limits of every call.
const (
	atOnce     = 8                // concurrent calls
	perTry     = 30 * time.Second // until the whole answer is read
	tries      = 4
	firstPause = 250 * time.Millisecond // doubled for each further try, minus a random part
	longest    = 30 * time.Second       // maximum wait for a Retry-After
	maxAnswer  = 64 << 20               // bytes of an answer
)

// patient is a RoundTripper that limits and repeats requests.
type patient struct {
	next  http.RoundTripper
	slots chan struct{}
	limit time.Duration // of a try
	pause func(ctx context.Context, d time.Duration) error
}

func newPatient(next http.RoundTripper) *patient {
	return &patient{next: next, slots: make(chan struct{}, atOnce), limit: perTry, pause: pause}
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// RoundTrip sends a request, and repeats it if that is harmless.
func (p *patient) RoundTrip(req *http.Request) (*http.Response, error) {
	for try := 1; ; try++ {
		res, err := p.once(req)
		wait, again := verdict(req, res, err, try)
		if !again || req.Context().Err() != nil {
			return res, err
		}
		if res != nil {
			_ = res.Body.Close()
		}
		if err := p.pause(req.Context(), wait); err != nil {
			return nil, fmt.Errorf("wait before repeating %s %s: %w", req.Method, req.URL.Path, err)
		}
	}
}

// verdict decides whether to repeat, and after what time.
func verdict(req *http.Request, res *http.Response, err error, try int) (time.Duration, bool) {
	if try >= tries || req.Body != nil && req.GetBody == nil {
		return 0, false
	}
	backoff := firstPause << (try - 1)
	backoff -= time.Duration(rand.Int64N(int64(backoff) / 2)) //nolint:gosec // jitter
	idempotent := req.Method == http.MethodGet || req.Method == http.MethodHead || req.Method == http.MethodDelete
	switch {
	case err != nil:
		return backoff, idempotent
	case res.StatusCode == http.StatusTooManyRequests: // not processed, whatever the method
		return after(res, backoff), true
	case res.StatusCode >= http.StatusInternalServerError && res.StatusCode != http.StatusNotImplemented:
		return after(res, backoff), idempotent
	}
	return 0, false
}

// after is the delay that Retry-After requests, in seconds or as a date, within limits.
func after(res *http.Response, otherwise time.Duration) time.Duration {
	text := res.Header.Get("Retry-After")
	wait := otherwise
	if n, err := strconv.Atoi(text); err == nil {
		wait = time.Duration(min(max(n, 0), int(longest/time.Second))) * time.Second
	} else if when, err := http.ParseTime(text); err == nil {
		wait = time.Until(when)
	}
	return min(max(wait, otherwise), longest)
}

// once sends a request once, within the limits.
func (p *patient) once(req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithTimeout(req.Context(), p.limit)
	select {
	case p.slots <- struct{}{}:
	case <-ctx.Done():
		cancel()
		return nil, fmt.Errorf("%s %s: %d calls to OpenStack are under way: %w", req.Method, req.URL.Path, atOnce, ctx.Err())
	}
	done := func() { <-p.slots; cancel() }
	attempt := req.Clone(ctx)
	if req.GetBody != nil {
		body, err := req.GetBody()
		if err != nil {
			done()
			return nil, fmt.Errorf("repeat the body of %s %s: %w", req.Method, req.URL.Path, err)
		}
		attempt.Body = body
	}
	res, err := p.next.RoundTrip(attempt)
	if err != nil {
		done()
		return nil, err
	}
	res.Body = &bounded{body: res.Body, left: maxAnswer, done: done}
	if err := filled(res); err != nil {
		_ = res.Body.Close()
		return nil, fmt.Errorf("%s %s: %w", req.Method, req.URL.Path, err)
	}
	return res, nil
}

var errNothing = errors.New("OpenStack answers with an empty object")

// filled returns an error for an answer that is an empty JSON object. OpenStack never sends one; if it were read as an empty list, objects
// would be created a second time.
func filled(res *http.Response) error {
	if res.StatusCode >= http.StatusMultipleChoices {
		return nil
	}
	begin := make([]byte, 3)
	n, err := io.ReadFull(res.Body, begin)
	if errors.Is(err, io.ErrUnexpectedEOF) && string(begin[:n]) == "{}" || string(begin[:n]) == "{}\n" {
		return errNothing
	}
	res.Body = &resumed{Reader: io.MultiReader(bytes.NewReader(begin[:n]), res.Body), Closer: res.Body}
	return nil
}

// resumed reads an answer from its beginning.
type resumed struct {
	io.Reader
	io.Closer
}

// bounded frees the slot once the answer is read or dropped.
type bounded struct {
	body io.ReadCloser
	left int
	done func()
}

var errLongAnswer = errors.New("OpenStack's answer is longer than 64 MiB")

// Read reads the answer up to its limit.
func (b *bounded) Read(into []byte) (int, error) {
	n, err := b.body.Read(into)
	if b.left -= n; b.left < 0 {
		return 0, errLongAnswer
	}
	return n, err
}

// Close frees the slot, once.
func (b *bounded) Close() error {
	err := b.body.Close()
	if b.done != nil {
		b.done()
		b.done = nil
	}
	return err
}
