package tracing

import (
	"bytes"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
)

// answers is a collector that gives its responses in turn, and records the times of the requests; nil is no response at all.
type answers struct {
	next  []func(http.ResponseWriter)
	begin time.Time
	asked []time.Duration
	first []byte
}

// RoundTrip implements http.RoundTripper.
func (a *answers) RoundTrip(req *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return nil, err
	}
	if a.first == nil {
		a.first = body
	}
	if !bytes.Equal(a.first, body) {
		return nil, errors.New("another batch")
	}
	a.asked = append(a.asked, time.Since(a.begin))
	answer := a.next[0]
	a.next = a.next[1:]
	if answer == nil {
		return nil, errors.New("connection refused")
	}
	recorder := httptest.NewRecorder()
	answer(recorder)
	return recorder.Result(), nil
}

func says(status int, body string, headers ...string) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) {
		for i := 0; i < len(headers); i += 2 {
			w.Header().Set(headers[i], headers[i+1])
		}
		w.WriteHeader(status)
		io.WriteString(w, body) //nolint:errcheck // to a buffer
	}
}

// The collector's response decides when, and whether, a batch is sent again. A failure is logged once.
func TestAnswers(t *testing.T) {
	fine := says(http.StatusOK, "{}")
	const s = time.Second
	for name, test := range map[string]struct {
		answers []func(http.ResponseWriter)
		batches int
		asked   []time.Duration
		logged  []string
	}{
		"taken":                 {[]func(http.ResponseWriter){fine, says(200, ""), says(200, "ok")}, 3, []time.Duration{0, 0, 0}, nil},
		"asked to wait":         {[]func(http.ResponseWriter){says(429, "", "Retry-After", "7"), fine}, 1, []time.Duration{0, 7 * s}, nil},
		"until a date":          {[]func(http.ResponseWriter){says(503, "", "Retry-After", "Sat, 01 Jan 2000 00:00:04 GMT"), fine}, 1, []time.Duration{0, 4 * s}, nil},
		"not said for how long": {[]func(http.ResponseWriter){says(503, "", "Retry-After", "soon"), says(502, ""), says(504, ""), fine}, 1, []time.Duration{0, 1 * s, 3 * s, 7 * s}, nil},
		"not there": {
			[]func(http.ResponseWriter){nil, nil, nil, nil, nil, fine},
			2,
			[]time.Duration{0, 1 * s, 3 * s, 7 * s, 15 * s, 16 * s},
			[]string{"WARN connection refused", "INFO"},
		},
		"asked to wait for longer than a batch": {
			[]func(http.ResponseWriter){says(503, "", "Retry-After", "25"), fine},
			3,
			[]time.Duration{0, 25 * s},
			[]string{"WARN 503 Service Unavailable", "INFO"},
		},
		"refused": {
			[]func(http.ResponseWriter){says(400, `{"message":"bad field"}`), says(400, `{"message":"another"}`), says(401, "no"), fine},
			4,
			[]time.Duration{0, 0, 0, 0},
			[]string{"WARN 400 Bad Request: bad field", "WARN 401 Unauthorized", "INFO"},
		},
		"redirected": {[]func(http.ResponseWriter){says(307, "", "Location", "http://elsewhere/")}, 1, []time.Duration{0}, []string{"WARN 307 Temporary Redirect"}},
		"taken in part": {
			[]func(http.ResponseWriter){
				says(200, `{"partialSuccess":{"rejectedSpans":"3","errorMessage":"too old"}}`),
				says(200, `{"partialSuccess":{"rejectedSpans":4}}`),
				says(200, `{"partialSuccess":{"rejectedSpans":"0","errorMessage":"use gzip"}}`),
				says(200, `{"partialSuccess":{}}`),
			},
			4,
			[]time.Duration{0, 0, 0, 0},
			[]string{"WARN rejects 3 spans of a batch: too old", "WARN warns: use gzip", "INFO"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				collector := &answers{next: test.answers, begin: time.Now()}
				var log bytes.Buffer
				e := newExporter(t, slog.New(slog.NewTextHandler(&log, nil)))
				e.client.Transport = collector
				spans := tracetest.SpanStubs{{Name: "ADD"}}.Snapshots()
				for range test.batches {
					if err := e.ExportSpans(t.Context(), spans); err != nil {
						t.Error(err)
					}
				}
				if diff := cmp.Diff(test.asked, collector.asked); diff != "" {
					t.Errorf("asked (-want +got):\n%s", diff)
				}
				lines := strings.Split(strings.TrimSpace(log.String()), "\n")
				if log.Len() == 0 {
					lines = nil
				}
				if len(lines) != len(test.logged) {
					t.Fatalf("logged %q, want %q", lines, test.logged)
				}
				for i, want := range test.logged {
					level, words, _ := strings.Cut(want, " ")
					if !strings.Contains(lines[i], "level="+level) || !strings.Contains(lines[i], words) {
						t.Errorf("logged %q, want %q", lines[i], want)
					}
				}
			})
		})
	}
}

func newExporter(t *testing.T, log *slog.Logger) *exporter {
	t.Helper()
	to, err := collectorOf(environment())
	if err != nil {
		t.Fatal(err)
	}
	return &exporter{client: to.client(), to: to, log: log}
}

// If the environment names a CA, a collector is trusted only with a certificate of that CA.
func TestCollectorsCertificate(t *testing.T) {
	r := &receiver{spans: map[string]wireSpan{}}
	server := httptest.NewTLSServer(r)
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	defer server.Close()
	path := filepath.Join(t.TempDir(), "ca.crt")
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if err := os.WriteFile(path, ca, 0o600); err != nil {
		t.Fatal(err)
	}
	to, err := collectorOf(environment("OTEL_EXPORTER_OTLP_ENDPOINT="+server.URL, "OTEL_EXPORTER_OTLP_CERTIFICATE="+path))
	if err != nil {
		t.Fatal(err)
	}
	e := &exporter{client: to.client(), to: to, log: slog.New(slog.DiscardHandler)}
	batch := []byte(`{"resourceSpans":[]}`)
	if failed := e.post(t.Context(), batch); failed != nil {
		t.Error(failed.err)
	}
	to.tls = nil
	e.client = to.client()
	var unverified *tls.CertificateVerificationError
	if failed := e.post(t.Context(), batch); failed == nil || !errors.As(failed.err, &unverified) {
		t.Errorf("an authority that the system does not know: %+v", failed)
	}
	var _ sdktrace.SpanExporter = e
	if err := e.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
}
