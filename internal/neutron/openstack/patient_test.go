package openstack

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gophercloud/gophercloud/v2"
)

// answers serves the given answers in order, and then always the last one.
func answers(t *testing.T, all ...http.HandlerFunc) (url string, asked *atomic.Int32) {
	t.Helper()
	asked = &atomic.Int32{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := int(asked.Add(1))
		all[min(n, len(all))-1](w, r)
	}))
	t.Cleanup(server.Close)
	return server.URL, asked
}

func status(code int, header ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		for i := 0; i+1 < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		w.WriteHeader(code)
	}
}

func says(body string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, body)
	}
}

// cut ends the connection in the middle of an answer's head.
func cut(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

func TestWhatIsRepeated(t *testing.T) {
	for _, c := range []struct {
		name, method string
		first        http.HandlerFunc
		asked        int32
		code         int // 0: an error
	}{
		{"GET after 503", http.MethodGet, status(503), 2, 200},
		{"DELETE after 500", http.MethodDelete, status(500), 2, 200},
		{"GET after a lost connection", http.MethodGet, cut, 2, 200},
		{"GET after 501 is final", http.MethodGet, status(501), 1, 501},
		{"GET after 404 is final", http.MethodGet, status(404), 1, 404},
		{"POST after 503: what it made is looked for first", http.MethodPost, status(503), 1, 503},
		{"POST after a lost connection", http.MethodPost, cut, 1, 0},
		{"PUT after 500", http.MethodPut, status(500), 1, 500},
		{"GET answered with an empty object", http.MethodGet, says("{}"), 2, 200},
		{"POST answered with an empty object: what it made is looked for first", http.MethodPost, says("{}\n"), 1, 0},
		{"GET answered with an empty list", http.MethodGet, says(`{"ports": []}`), 1, 200},
		{"POST after 429: it was not processed", http.MethodPost, status(429, "Retry-After", "1"), 2, 200},
	} {
		t.Run(c.name, func(t *testing.T) {
			url, asked := answers(t, c.first, status(200))
			p := newPatient(http.DefaultTransport)
			var waited time.Duration
			p.pause = func(_ context.Context, d time.Duration) error { waited = d; return nil }
			req, err := http.NewRequestWithContext(t.Context(), c.method, url, strings.NewReader(`{"port":{}}`))
			if err != nil {
				t.Fatal(err)
			}
			res, err := (&http.Client{Transport: p}).Do(req)
			got := 0
			if err == nil {
				got = res.StatusCode
				_ = res.Body.Close()
			}
			if got != c.code || asked.Load() != c.asked {
				t.Errorf("answer %d (%v) after %d requests, want %d after %d", got, err, asked.Load(), c.code, c.asked)
			}
			if strings.Contains(c.name, "429") && waited != time.Second {
				t.Errorf("waited %s, Retry-After says 1 s", waited)
			}
		})
	}
}

func TestRepeatingEnds(t *testing.T) {
	url, asked := answers(t, status(503, "Retry-After", "999999"))
	p := newPatient(http.DefaultTransport)
	p.pause = func(_ context.Context, d time.Duration) error {
		if d > longest {
			t.Errorf("waits %s, at most %s is wanted", d, longest)
		}
		return nil
	}
	res, err := (&http.Client{Transport: p}).Get(url)
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	if asked.Load() != tries {
		t.Errorf("%d requests, want %d", asked.Load(), tries)
	}
}

// The beginning of an answer that was examined is read again.
func TestAnswersAreWhole(t *testing.T) {
	for _, body := range []string{"", "{", "{}x", "null", `{"a":1}`, strings.Repeat("x", 4096)} {
		url, _ := answers(t, says(body))
		res, err := (&http.Client{Transport: newPatient(http.DefaultTransport)}).Get(url)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(res.Body)
		if err != nil || string(got) != body {
			t.Errorf("answer %q is read as %q: %v", body, got, err)
		}
		_ = res.Body.Close()
	}
}

// A server that accepts a request and sends no answer blocks a call for a limited time, and no slot afterwards.
func TestSilentServer(t *testing.T) {
	url, asked := answers(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	p := newPatient(http.DefaultTransport)
	p.limit = 20 * time.Millisecond
	p.pause = func(context.Context, time.Duration) error { return nil }
	res, err := (&http.Client{Transport: p}).Get(url)
	if err == nil {
		_ = res.Body.Close()
		t.Fatal("there is an answer")
	}
	if !errors.Is(err, context.DeadlineExceeded) || asked.Load() > tries {
		t.Errorf("error %v after %d requests", err, asked.Load())
	}
	if n := len(p.slots); n != 0 {
		t.Errorf("%d slots are taken by nothing", n)
	}
}

// The slots of calls are freed, whatever happens to an answer.
func TestSlotsComeBack(t *testing.T) {
	url, _ := answers(t, status(404))
	p := newPatient(http.DefaultTransport)
	for range 3 * atOnce {
		res, err := (&http.Client{Transport: p}).Get(url)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		_ = res.Body.Close()
	}
	if n := len(p.slots); n != 0 {
		t.Errorf("%d slots are taken by nothing", n)
	}
}

func TestExplain(t *testing.T) {
	for body, want := range map[string]string{
		`{"NeutronError": {"type": "IpAddressAlreadyAllocated", "message": "in use", "detail": ""}}`: "OpenStack answers 409 IpAddressAlreadyAllocated: in use",
		`{"faultcode": "Server", "faultstring": "no\nsuch\u0000 thing"}`:                             "OpenStack answers 409: no such thing",
		`{"error": {"code": 409, "message": "twice", "title": "Conflict"}}`:                          "OpenStack answers 409: twice",
		`{"NeutronError": "plain"}`:       "OpenStack answers 409: plain",
		``:                                "OpenStack answers 409: Conflict",
		"<html>\n<b>proxy</b>":            "OpenStack answers 409: <html> <b>proxy</b>",
		`{"NeutronError": [1, {"a": 2}]}`: "OpenStack answers 409: Conflict",
	} {
		err := Explain(gophercloud.ErrUnexpectedResponseCode{Actual: 409, Body: []byte(body)})
		if err.Error() != want {
			t.Errorf("%s: %q, want %q", body, err, want)
		}
		if !Is(err, 409) || Unknown(err) {
			t.Errorf("%s: status is lost", body)
		}
	}
	if !Unknown(errors.New("connection reset")) || Unknown(nil) {
		t.Error("a lost connection leaves the outcome unknown, success does not")
	}
}

// OpenStack is away if it does not answer, or only with errors of its own. What it refuses is wrong.
func TestAway(t *testing.T) {
	lost := fmt.Errorf("look for network: %w", &url.Error{Op: "Get", URL: "http://192.0.2.1", Err: io.EOF})
	for err, want := range map[error]bool{
		lost:                                  true,
		errors.Join(lost, errors.New("more")): true,
		fmt.Errorf("read a list: %w", io.ErrUnexpectedEOF):                                                   true,
		Explain(gophercloud.ErrUnexpectedResponseCode{Actual: 503}):                                          true,
		Explain(gophercloud.ErrUnexpectedResponseCode{Actual: 429}):                                          true,
		Explain(gophercloud.ErrUnexpectedResponseCode{Actual: 501}):                                          false,
		Explain(gophercloud.ErrUnexpectedResponseCode{Actual: 409}):                                          false,
		&url.Error{Op: "Get", URL: "https://192.0.2.1", Err: &tls.CertificateVerificationError{Err: io.EOF}}: false,
		errors.New("several objects"):                                                                        false,
	} {
		if got := Away(err); got != want {
			t.Errorf("%v: away %t", err, got)
		}
	}
}

func FuzzExplain(f *testing.F) {
	f.Add([]byte(`{"NeutronError": {"type": "A", "message": "b"}}`))
	f.Add([]byte("\xff\n"))
	f.Fuzz(func(t *testing.T, body []byte) {
		text := Explain(gophercloud.ErrUnexpectedResponseCode{Actual: 500, Body: body}).Error()
		if strings.ContainsAny(text, "\n\r\x00") || len(text) > 3*maxWords {
			t.Errorf("%q", text)
		}
	})
}

// Whatever Retry-After says, a repetition waits at least its own time and at most the longest.
func FuzzAfter(f *testing.F) {
	for _, text := range []string{"1", "-1", "9223372036854775807", "Mon, 30 Nov 2026 12:00:00 GMT", "Mon, 30 Nov 9999 12:00:00 GMT", "soon"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got := after(&http.Response{Header: http.Header{"Retry-After": {text}}}, firstPause)
		if got < firstPause || got > longest {
			t.Errorf("Retry-After %q waits %s", text, got)
		}
	})
}
