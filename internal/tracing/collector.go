package tracing

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"
)

// collector is the destination of spans, and how to reach it.
type collector struct {
	url     *url.URL
	headers http.Header
	// timeout bounds the sending of one batch, including retries and waits.
	timeout time.Duration
	// tls is nil for the system's certificates.
	tls *tls.Config
}

// Defaults of the specification ("OpenTelemetry Protocol Exporter").
const (
	defaultEndpoint = "http://localhost:4318"
	defaultTimeout  = 10 * time.Second
	signalPath      = "v1/traces"
)

// Prefixes of variables. Those for traces take precedence over those for all signals.
const (
	prefixAll    = "OTEL_EXPORTER_OTLP_"
	prefixTraces = "OTEL_EXPORTER_OTLP_TRACES_"
)

// collectorOf reads the standard environment variables. Its errors name the variable, and never contain the value of a header.
func collectorOf(getenv func(string) string) (collector, error) {
	get := func(what string) (name, value string) {
		if value := getenv(prefixTraces + what); value != "" {
			return prefixTraces + what, value
		}
		return prefixAll + what, getenv(prefixAll + what)
	}
	to := collector{timeout: defaultTimeout}
	var err error
	if name, value := get("PROTOCOL"); value != "" && value != "http/json" {
		return to, fmt.Errorf("%s=%s: only http/json is supported; collectors accept it where they accept http/protobuf (port 4318)", name, value)
	}
	if to.url, err = endpointOf(get("ENDPOINT")); err != nil {
		return to, err
	}
	if to.headers, err = headersOf(get("HEADERS")); err != nil {
		return to, err
	}
	if name, value := get("TIMEOUT"); value != "" {
		ms, err := strconv.ParseUint(value, 10, 31)
		if err != nil || ms == 0 {
			return to, fmt.Errorf("%s=%s: it is a number of milliseconds, more than 0", name, value)
		}
		to.timeout = time.Duration(ms) * time.Millisecond
	}
	if name, path := get("CERTIFICATE"); path != "" {
		if to.tls, err = trusting(path); err != nil {
			return to, fmt.Errorf("%s: %w", name, err)
		}
	}
	return to, nil
}

// endpointOf returns the URL to which spans are posted. Only the variable for all signals gets the path of traces added.
func endpointOf(name, value string) (*url.URL, error) {
	if value == "" {
		value = defaultEndpoint
	}
	at, err := url.Parse(value)
	if err != nil || at.Scheme != "http" && at.Scheme != "https" || at.Host == "" {
		return nil, fmt.Errorf("%s: it is the collector's address, http://host:4318 or https://", name) // the value may contain a password
	}
	if name == prefixAll+"ENDPOINT" {
		at = at.JoinPath(signalPath)
	}
	return at, nil
}

// headersOf parses key=value,key=value, with values escaped as in URLs.
func headersOf(name, value string) (http.Header, error) {
	headers := http.Header{}
	for i, pair := range strings.Split(value, ",") {
		if strings.TrimSpace(pair) == "" {
			continue
		}
		key, escaped, found := strings.Cut(pair, "=")
		key = strings.TrimSpace(key)
		value, err := url.PathUnescape(strings.TrimSpace(escaped))
		if !found || err != nil || !httpguts.ValidHeaderFieldName(key) || !httpguts.ValidHeaderFieldValue(value) {
			return nil, fmt.Errorf("%s: header %d is not name=value with other characters escaped (%%20)", name, i+1)
		}
		headers.Set(key, value)
	}
	return headers, nil
}

var errNoCertificate = errors.New("it has no PEM certificate")

// trusting returns a configuration that trusts the certificates in a file instead of those of the system.
func trusting(path string) (*tls.Config, error) {
	pem, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("certificates of the collector's authority: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s: %w", path, errNoCertificate)
	}
	return &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, nil
}
