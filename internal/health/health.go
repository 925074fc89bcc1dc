// Package health serves a program's health over HTTP: /healthz (it runs), /readyz (it can do its work, check by check), and /metrics.
//
// Each check is one line of the response: "[+]name" is healthy, "[-]name: why" is not, and "[!]name: what" is a warning that does not
// affect the result. As in Kubernetes, /readyz/<name> runs a single check, and ?exclude=<name> leaves one out.
package health

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"slices"
	"strings"
	"sync"
	"time"
)

// Check is a named check.
type Check struct {
	// Name is the name of the check, in lower case, with words joined by hyphens.
	Name string
	// Run returns nil if the check is healthy, otherwise what is wrong. It returns at once: it evaluates known state and sends no requests.
	Run func() error
}

// Server serves health. The zero value is usable: it is alive, and not ready.
type Server struct {
	// Metrics serves /metrics. Nil: not served.
	Metrics http.Handler
	// Profiling also serves the Go runtime's profiles, such as the stacks of all goroutines.
	Profiling bool

	mu       sync.Mutex
	checks   []Check
	warnings []Check
}

// Add adds checks to /readyz. Without a check the program is not ready.
func (s *Server) Add(checks ...Check) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.checks = append(s.checks, checks...)
}

// Warn adds checks to /readyz whose failure is reported but does not make the program unready.
func (s *Server) Warn(checks ...Check) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.warnings = append(s.warnings, checks...)
}

// Handler returns the HTTP handler. /healthz runs no checks: restarting the program does not help if something else is down.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	alive := func() (checks, warnings []Check) {
		return []Check{{"ping", func() error { return nil }}}, nil
	}
	handle(mux, "/healthz", alive)
	handle(mux, "/readyz", s.ready)
	if s.Metrics != nil {
		mux.Handle("GET /metrics", s.Metrics)
	}
	if s.Profiling {
		mux.HandleFunc("GET /debug/pprof/", pprof.Index)
		mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	}
	return mux
}

func (s *Server) ready() (checks, warnings []Check) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.checks) == 0 { // without checks the program is still starting
		return []Check{{"start", func() error { return errors.New("it is starting") }}}, nil
	}
	return slices.Clone(s.checks), slices.Clone(s.warnings)
}

// handle serves all checks at a path, and each of them below it.
func handle(mux *http.ServeMux, path string, of func() (checks, warnings []Check)) {
	mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
		excluded := r.URL.Query()["exclude"]
		out := func(c Check) bool { return slices.Contains(excluded, c.Name) }
		checks, warnings := of()
		answer(w, slices.DeleteFunc(checks, out), slices.DeleteFunc(warnings, out))
	})
	mux.HandleFunc("GET "+path+"/{check}", func(w http.ResponseWriter, r *http.Request) {
		name := r.PathValue("check")
		checks, warnings := of()
		all := slices.Concat(checks, warnings) // requested alone, a warning decides the result
		at := slices.IndexFunc(all, func(c Check) bool { return c.Name == name })
		if at < 0 {
			var names []string
			for _, c := range all {
				names = append(names, c.Name)
			}
			http.Error(w, fmt.Sprintf("no check %q: there are %s", name, strings.Join(names, ", ")), http.StatusNotFound)
			return
		}
		answer(w, all[at:at+1], nil)
	})
}

// answer runs the checks and writes one line for each.
func answer(w http.ResponseWriter, checks, warnings []Check) {
	var lines []string
	status := http.StatusOK
	for _, c := range checks {
		if err := c.Run(); err != nil {
			status = http.StatusServiceUnavailable
			lines = append(lines, fmt.Sprintf("[-]%s: %v", c.Name, err))
			continue
		}
		lines = append(lines, "[+]"+c.Name)
	}
	for _, c := range warnings {
		if err := c.Run(); err != nil {
			lines = append(lines, fmt.Sprintf("[!]%s: %v", c.Name, err))
		}
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	for _, line := range lines {
		_, _ = fmt.Fprintln(w, line)
	}
}

// timeout bounds reading a request, and writing its response; clients must request profiles of a shorter duration.
const timeout = 10 * time.Second

// Serve serves handler on address (host:port) until ctx ends. An empty address serves nothing.
func Serve(ctx context.Context, address string, handler http.Handler) error {
	if address == "" {
		return nil
	}
	var listening net.ListenConfig
	listener, err := listening.Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("health and metrics endpoint: %w", err)
	}
	server := &http.Server{Handler: handler, ReadTimeout: timeout, WriteTimeout: timeout, MaxHeaderBytes: 8 << 10}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("health and metrics endpoint: %w", err)
	}
	return nil
}
