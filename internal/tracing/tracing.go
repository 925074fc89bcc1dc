// Package tracing sends spans to an OpenTelemetry collector. It is for mains, which pass the provider to the code that makes spans.
//
// It implements OTLP over HTTP in JSON itself: the libraries for it need gRPC and protocol buffers, which cost an agent 19 MB of memory
// even if nothing is traced.
package tracing

import (
	"fmt"
	"log/slog"
	"net/http"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// Config configures tracing.
type Config struct {
	// Sampling is the share of requests that are traced, 0 to 1. The decision of a request's caller takes precedence, in both directions.
	Sampling float64
	// Service, Version and Node are attributes of every span. OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES take precedence.
	Service, Version, Node string
	// Getenv is os.Getenv, with which the collector is found. Default: no variable is set, so the collector is at localhost:4318.
	Getenv func(string) string
	// Log receives a message when spans no longer arrive, and when they arrive again. Default: discarded.
	Log *slog.Logger
}

// queue is the maximum number of spans that wait for the collector, at about a kilobyte each. Further spans are dropped; callers never
// wait.
const queue = 2048

// New returns a provider that sends spans to the collector in the standard environment variables: OTEL_EXPORTER_OTLP_ENDPOINT, _HEADERS,
// _TIMEOUT and _CERTIFICATE; the same with the prefix OTEL_EXPORTER_OTLP_TRACES_ take precedence. Shutdown sends the spans in the queue.
func New(config Config) (*sdktrace.TracerProvider, error) {
	if !(config.Sampling >= 0 && config.Sampling <= 1) { // also refuses NaN
		return nil, fmt.Errorf("trace sampling %v: it is a part of all requests, from 0 to 1", config.Sampling)
	}
	if config.Getenv == nil {
		config.Getenv = func(string) string { return "" }
	}
	if config.Log == nil {
		config.Log = slog.New(slog.DiscardHandler)
	}
	to, err := collectorOf(config.Getenv)
	if err != nil {
		return nil, err
	}
	about, err := resource.Merge(resource.NewSchemaless(
		attribute.String("service.name", config.Service), attribute.String("service.version", config.Version),
		attribute.String("k8s.node.name", config.Node),
	), resource.Environment())
	if err != nil {
		return nil, fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	return sdktrace.NewTracerProvider(
		sdktrace.WithBatcher(&exporter{client: to.client(), to: to, log: config.Log}, sdktrace.WithMaxQueueSize(queue)),
		sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(config.Sampling))),
		sdktrace.WithResource(about),
	), nil
}

// client returns a client for the collector. It does not follow redirects, because the headers may contain credentials.
func (c collector) client() *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			Proxy: http.ProxyFromEnvironment, TLSClientConfig: c.tls, ForceAttemptHTTP2: true,
			MaxIdleConns: 1, IdleConnTimeout: idle, MaxResponseHeaderBytes: mostAnswer,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}
