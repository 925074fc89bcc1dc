// Package tracing sends spans to a collector of OpenTelemetry. It is for mains: whoever makes spans gets a provider.
//
// It speaks OTLP over HTTP in JSON itself: the libraries for that bring gRPC and protocol buffers along, which cost an agent
// 19 MB of memory while nothing is traced.
package tracing

import (
	"fmt"
	"log/slog"
	"net/http"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// Config says what is traced.
type Config struct {
	// Sampling is the part of requests that are traced, 0 to 1. A request whose caller is traced is traced as well, and
	// one whose caller decided against it is not.
	Sampling float64
	// Service, Version and Node are told of every span. OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES come before them.
	Service, Version, Node string
	// Getenv is os.Getenv, by which the collector is found. Default: nothing is set, the collector is at localhost:4318.
	Getenv func(string) string
	// Log is told when spans stop arriving, and when they arrive again. Default: nobody is told.
	Log *slog.Logger
}

// queue bounds the spans that wait for the collector, at about a kilobyte each; more are dropped. Nobody waits for it.
const queue = 2048

// New returns a provider that sends spans to where the standard environment says: OTEL_EXPORTER_OTLP_ENDPOINT, _HEADERS,
// _TIMEOUT and _CERTIFICATE, each with OTEL_EXPORTER_OTLP_TRACES_ before it. Shutdown sends what waits.
func New(config Config) (*sdktrace.TracerProvider, error) {
	if !(config.Sampling >= 0 && config.Sampling <= 1) { // not a number is neither
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

// client returns a client for one collector. It follows no redirection: the headers may be credentials.
func (c collector) client() *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			Proxy: http.ProxyFromEnvironment, TLSClientConfig: c.tls, ForceAttemptHTTP2: true,
			MaxIdleConns: 1, IdleConnTimeout: idle, MaxResponseHeaderBytes: mostAnswer,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}
