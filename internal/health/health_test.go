package health

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestAnswers(t *testing.T) {
	s := &Server{Metrics: http.NotFoundHandler()}
	ask := func(path string, status int, body string) {
		t.Helper()
		answer := httptest.NewRecorder()
		s.Handler().ServeHTTP(answer, httptest.NewRequest(http.MethodGet, path, http.NoBody))
		if answer.Code != status || answer.Body.String() != body {
			t.Errorf("%s: %d %q, want %d %q", path, answer.Code, answer.Body, status, body)
		}
	}
	ask("/healthz", 200, "[+]ping\n")
	ask("/readyz", 503, "[-]start: it is starting\n")

	var broken error
	s.Add(Check{"network", func() error { return nil }}, Check{"engines", func() error { return broken }})
	s.Warn(Check{"host-firewall", func() error { return errors.New("chain c drops") }})
	ask("/readyz", 200, "[+]network\n[+]engines\n[!]host-firewall: chain c drops\n")
	ask("/readyz?verbose", 200, "[+]network\n[+]engines\n[!]host-firewall: chain c drops\n")

	broken = errors.New("the switch is away")
	ask("/healthz", 200, "[+]ping\n") // a restart would not bring the switch back
	ask("/readyz", 503, "[+]network\n[-]engines: the switch is away\n[!]host-firewall: chain c drops\n")
	ask("/readyz?exclude=engines", 200, "[+]network\n[!]host-firewall: chain c drops\n")
	ask("/readyz?exclude=engines&exclude=host-firewall", 200, "[+]network\n")
	ask("/readyz/network", 200, "[+]network\n")
	ask("/readyz/engines", 503, "[-]engines: the switch is away\n")
	ask("/readyz/host-firewall", 503, "[-]host-firewall: chain c drops\n")
	ask("/healthz/ping", 200, "[+]ping\n")
	ask("/readyz/engine", 404, "no check \"engine\": there are network, engines, host-firewall\n")
	ask("/debug/pprof/", 404, "404 page not found\n")
}

func TestServe(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, "127.0.0.1:0", http.NotFoundHandler()) }()
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := Serve(t.Context(), "", nil); err != nil {
		t.Error(err)
	}
	if err := Serve(t.Context(), "192.0.2.1:notaport", nil); err == nil {
		t.Error("served at no address")
	}
}
