package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"slices"
	"sync"
	"time"
)

// check is a named part of readiness: nil when it is well, else what is wrong.
type check struct {
	name string
	run  func() error
}

// health serves /healthz (the process answers) and /readyz (each check by name).
type health struct {
	// profiling also serves the runtime's own profiles, such as how many goroutines there are and where.
	profiling bool

	mu       sync.Mutex
	checks   []check
	warnings []check
}

// add adds checks to /readyz.
func (h *health) add(checks ...check) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.checks = append(h.checks, checks...)
}

// warn adds checks to /readyz that are told, and without which the agent is ready all the same.
func (h *health) warn(checks ...check) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.warnings = append(h.warnings, checks...)
}

// serve answers on address until ctx ends. An empty address serves nothing.
func (h *health) serve(ctx context.Context, address string) error {
	if address == "" {
		return nil
	}
	var listening net.ListenConfig
	listener, err := listening.Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("health endpoint: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", h.ready)
	if h.profiling {
		mux.HandleFunc("GET /debug/pprof/", pprof.Index)
		mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	}
	server := &http.Server{Handler: mux, ReadTimeout: 5 * time.Second, WriteTimeout: 5 * time.Second}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("health endpoint: %w", err)
	}
	return nil
}

func (h *health) ready(w http.ResponseWriter, _ *http.Request) {
	h.mu.Lock()
	checks, warnings := slices.Clone(h.checks), slices.Clone(h.warnings)
	h.mu.Unlock()
	var lines []string
	status := http.StatusOK
	if len(checks) == 0 { // nothing to be ready of exists yet
		status, lines = http.StatusServiceUnavailable, []string{"[-]agent: it is starting"}
	}
	for _, c := range checks {
		if err := c.run(); err != nil {
			status = http.StatusServiceUnavailable
			lines = append(lines, fmt.Sprintf("[-]%s: %v", c.name, err))
			continue
		}
		lines = append(lines, fmt.Sprintf("[+]%s", c.name))
	}
	for _, c := range warnings {
		if err := c.run(); err != nil {
			lines = append(lines, fmt.Sprintf("[!]%s: %v", c.name, err))
		}
	}
	w.WriteHeader(status)
	for _, line := range lines {
		_, _ = fmt.Fprintln(w, line)
	}
}
