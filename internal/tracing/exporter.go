package tracing

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

const (
	// firstDelay is the delay before the first retry of a batch, if the collector does not send one; it doubles with each retry.
	firstDelay = time.Second
	// mostHold limits the delay that a collector can request.
	mostHold = time.Hour
	// mostAnswer limits how much of a response is read, in bytes.
	mostAnswer = 64 << 10
	// mostWords limits how much of the collector's message is logged, in bytes.
	mostWords = 300
	// idle is how long a connection is kept for the next batch. Batches are sent every 5 seconds while there are spans.
	idle = 30 * time.Second
)

// exporter posts spans to a collector. The batcher calls it from its own goroutine, one batch at a time, and drops spans while it is busy
// and the queue is full.
type exporter struct {
	client *http.Client
	to     collector
	log    *slog.Logger

	// held is the earliest time of the next request, and why the failure that requires the delay.
	held time.Time
	why  *failure
	// logged is the kind of the failure logged last.
	logged string
}

// failure is why spans did not arrive.
type failure struct {
	// kind distinguishes failures; the message may differ at each attempt.
	kind string
	err  error
	// again says that the same batch may be sent again, not before the duration after, if that is set.
	again bool
	after time.Duration
}

// ExportSpans implements sdktrace.SpanExporter. It logs a failure once, until the kind of failure changes.
func (e *exporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	body, err := json.Marshal(encode(spans))
	if err != nil {
		return fmt.Errorf("encoding spans: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, e.to.timeout)
	defer cancel()
	e.logOnce(e.send(ctx, body))
	return nil
}

// Shutdown implements sdktrace.SpanExporter.
func (e *exporter) Shutdown(context.Context) error {
	e.client.CloseIdleConnections()
	return nil
}

// send posts a batch until it is accepted or permanently refused, or ctx ends.
func (e *exporter) send(ctx context.Context, body []byte) *failure {
	for delay := firstDelay; ; delay *= 2 {
		if !waitUntil(ctx, e.held) {
			return e.why
		}
		failed := e.post(ctx, body)
		if failed == nil || !failed.again {
			return failed
		}
		after := delay
		if failed.after > 0 {
			after = failed.after
		}
		e.held, e.why = time.Now().Add(after), failed
	}
}

// waitUntil waits until a time, and reports whether it was reached before ctx ended.
func waitUntil(ctx context.Context, when time.Time) bool {
	timer := time.NewTimer(time.Until(when))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (e *exporter) post(ctx context.Context, body []byte) *failure {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, e.to.url.String(), bytes.NewReader(body))
	if err != nil {
		return &failure{kind: "request", err: err}
	}
	req.Header = e.to.headers.Clone()
	req.Header.Set("Content-Type", "application/json")
	resp, err := e.client.Do(req)
	if err != nil {
		return &failure{kind: "unreachable", err: err, again: true}
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, mostAnswer))
	if err != nil {
		return &failure{kind: "unreachable", err: fmt.Errorf("reading the collector's answer: %w", err), again: true}
	}
	if resp.StatusCode/100 != 2 {
		return refusal(resp, answer)
	}
	return partial(answer)
}

// refusal evaluates a response that is not a success. The specification defines which of them may be retried ("Retryable Response Codes").
// A JSON body is a google.rpc.Status.
func refusal(resp *http.Response, answer []byte) *failure {
	failed := &failure{kind: resp.Status}
	var status struct {
		Message string `json:"message"`
	}
	words := resp.Status
	if json.Unmarshal(answer, &status) == nil && status.Message != "" {
		words += ": " + cut(status.Message)
	}
	failed.err = fmt.Errorf("the collector answers %s", words)
	switch resp.StatusCode {
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		failed.again, failed.after = true, retryAfter(resp.Header.Get("Retry-After"))
	case http.StatusBadGateway, http.StatusGatewayTimeout:
		failed.again = true
	}
	return failed
}

// retryAfter parses seconds or a date (RFC 9110, 10.2.3); 0 if the value is neither, or in the past.
func retryAfter(value string) time.Duration {
	if seconds, err := strconv.ParseUint(value, 10, 31); err == nil {
		return min(time.Duration(seconds)*time.Second, mostHold)
	}
	if at, err := http.ParseTime(value); err == nil {
		return max(0, min(time.Until(at), mostHold))
	}
	return 0
}

// partial evaluates the response to an accepted request, of which parts may have been rejected (ExportTraceServiceResponse). Such a batch
// must not be sent again.
func partial(answer []byte) *failure {
	var response struct {
		PartialSuccess struct {
			RejectedSpans json.Number `json:"rejectedSpans"` // an int64 is a string in the protocol's JSON
			ErrorMessage  string      `json:"errorMessage"`
		} `json:"partialSuccess"`
	}
	if json.Unmarshal(answer, &response) != nil {
		return nil // it was accepted; the rest of the response is not needed
	}
	rejected, words := response.PartialSuccess.RejectedSpans.String(), response.PartialSuccess.ErrorMessage
	switch {
	case rejected != "" && rejected != "0":
		return &failure{kind: "partial", err: fmt.Errorf("the collector rejects %s spans of a batch: %s", cut(rejected), cut(words))}
	case words != "":
		return &failure{kind: "warning", err: errors.New("the collector warns: " + cut(words))}
	}
	return nil
}

func cut(words string) string { return words[:min(len(words), mostWords)] }

func (e *exporter) logOnce(failed *failure) {
	switch {
	case failed == nil && e.logged != "":
		e.logged = ""
		e.log.Info("collector accepts spans again", "endpoint", e.to.url.Redacted())
	case failed != nil && failed.kind != e.logged:
		e.logged = failed.kind
		e.log.Warn("collector refuses spans", "endpoint", e.to.url.Redacted(), "error", failed.err)
	}
}
