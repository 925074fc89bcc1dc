// Package metrics has the metrics of Weft's programs, for Prometheus. Each program has its own registry.
//
// Names and labels are stable, because dashboards and alerts use them: docs/metrics.md is generated from what is registered here (go test
// ./internal/metrics -update). No label has values that grow with the cluster, such as pods, Services or addresses.
package metrics

import (
	"net/http"
	"runtime"
	"runtime/debug"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Definition is the stable part of a metric.
type Definition struct {
	// Name is the name, Type counter, gauge or histogram.
	Name, Type string
	// Labels are the names of the labels.
	Labels []string
	// Help describes the metric.
	Help string
}

// Registry has one program's metrics.
type Registry struct {
	registry    *prometheus.Registry
	definitions []Definition
}

// newRegistry returns a registry with the metrics that every program has: build information, and those of the Go runtime and the process.
func newRegistry(version string) *Registry {
	r := &Registry{registry: prometheus.NewRegistry()}
	r.registry.MustRegister(
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	build := r.gauge("weft_build_info", "1; the labels say which release of Weft runs, of which commit, built by which Go.",
		"version", "revision", "goversion")
	build.WithLabelValues(version, revision(), runtime.Version()).Set(1)
	return r
}

// revision returns the commit from which the program was built, "unknown" if the build did not record it.
func revision() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, setting := range info.Settings {
			if setting.Key == "vcs.revision" {
				return setting.Value
			}
		}
	}
	return "unknown"
}

// Handler returns the handler for scrapes.
func (r *Registry) Handler() http.Handler {
	return promhttp.HandlerFor(r.registry, promhttp.HandlerOpts{Registry: nil, MaxRequestsInFlight: 4})
}

// Definitions returns the definitions of the metrics, in the order of registration.
func (r *Registry) Definitions() []Definition { return append([]Definition(nil), r.definitions...) }

// Gatherer returns the gatherer for reading the metrics in this process.
func (r *Registry) Gatherer() prometheus.Gatherer { return r.registry }

func (r *Registry) define(name, kind, help string, labels []string) {
	r.definitions = append(r.definitions, Definition{Name: name, Type: kind, Labels: labels, Help: help})
}

func (r *Registry) counter(name, help string, labels ...string) *prometheus.CounterVec {
	r.define(name, "counter", help, labels)
	vec := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	r.registry.MustRegister(vec)
	return vec
}

func (r *Registry) gauge(name, help string, labels ...string) *prometheus.GaugeVec {
	r.define(name, "gauge", help, labels)
	vec := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
	r.registry.MustRegister(vec)
	return vec
}

// histogram registers a histogram of seconds. The buckets double, from the first on: about a dozen buckets cover four decades.
func (r *Registry) histogram(name, help string, first float64, labels ...string) *prometheus.HistogramVec {
	const buckets = 14
	r.define(name, "histogram", help, labels)
	vec := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: name, Help: help, Buckets: prometheus.ExponentialBuckets(first, 2, buckets),
	}, labels)
	r.registry.MustRegister(vec)
	return vec
}

// state registers a gauge that is evaluated at each scrape.
func (r *Registry) state(name, help string, labels ...string) *prometheus.Desc {
	r.define(name, "gauge", help, labels)
	return prometheus.NewDesc(name, help, labels, nil)
}

// scraped is a collector of gauges that are evaluated at each scrape.
type scraped struct {
	descriptions []*prometheus.Desc
	collect      func(set func(desc *prometheus.Desc, value float64, labels ...string))
}

// Describe implements prometheus.Collector.
func (s *scraped) Describe(out chan<- *prometheus.Desc) {
	for _, description := range s.descriptions {
		out <- description
	}
}

// Collect implements prometheus.Collector.
func (s *scraped) Collect(out chan<- prometheus.Metric) {
	s.collect(func(description *prometheus.Desc, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(description, prometheus.GaugeValue, value, labels...)
	})
}

// one returns the value of a boolean gauge: 0 or 1.
func one(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

// outcome returns the value of the label result.
func outcome(err error) string {
	if err != nil {
		return "error"
	}
	return "ok"
}
