package admin_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"weft.dev/weft/internal/admin"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 20 * time.Second

// serve runs a server for the user uid, and returns its socket.
func serve(t *testing.T, s *admin.Server, uid int) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "admin", "admin.sock")
	listener, err := admin.Listen(socket, uint32(uid)) //nolint:gosec // uids fit
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, listener) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return socket
}

func sample() admin.State {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	return admin.State{Node: "n1", Ready: true, Engines: []admin.Engine{{
		Name: "openflow", Items: 3, Committed: &at, Failures: []admin.Failure{{Owner: "cluster", Message: "no"}},
	}}}
}

func TestAnswers(t *testing.T) {
	level := &slog.LevelVar{}
	diff := admin.Diff{Engines: []admin.EngineDiff{{Name: "nft", Differences: []admin.Difference{{Change: admin.Missing, Item: "chain"}}}}}
	owners := admin.Owners{Node: "n1", Owners: []admin.Owner{{Cookie: "0x1", Owner: "cluster", Objects: []admin.Object{{Kind: "ClusterNetwork", Name: "default"}}}}}
	s := &admin.Server{
		State: sample, Diff: func(context.Context) (admin.Diff, error) { return diff, nil }, Level: level,
		Owners: func(q admin.OwnersQuery) (admin.Owners, error) {
			if q != (admin.OwnersQuery{Bridge: "br-n", Policy: "web/a&b"}) {
				return admin.Owners{}, errors.New("asked for " + q.Policy)
			}
			return owners, nil
		},
	}
	client := &admin.Client{Socket: serve(t, s, os.Geteuid())}
	state, err := client.State(t.Context())
	if d := cmp.Diff(sample(), state); err != nil || d != "" {
		t.Errorf("state (-want +got), %v:\n%s", err, d)
	}
	got, err := client.Diff(t.Context())
	if d := cmp.Diff(diff, got); err != nil || d != "" {
		t.Errorf("diff (-want +got), %v:\n%s", err, d)
	}
	whose, err := client.Owners(t.Context(), admin.OwnersQuery{Bridge: "br-n", Policy: "web/a&b"})
	if d := cmp.Diff(owners, whose); err != nil || d != "" {
		t.Errorf("owners (-want +got), %v:\n%s", err, d)
	}
	if _, err := client.Owners(t.Context(), admin.OwnersQuery{Policy: "other"}); err == nil || err.Error() != "asked for other" {
		t.Errorf("owners of another policy: %v", err)
	}
	if word, err := client.LogLevel(t.Context()); err != nil || word != "info" {
		t.Errorf("level %q, %v", word, err)
	}
	if word, err := client.SetLogLevel(t.Context(), "debug"); err != nil || word != "debug" || level.Level() != slog.LevelDebug {
		t.Errorf("level %q, %v; the log has level %s", word, err, level)
	}
	if _, err := client.SetLogLevel(t.Context(), "loud"); err == nil || !strings.Contains(err.Error(), "one of debug, info, warn, error") {
		t.Errorf("level loud: %v", err)
	}
	if level.Level() != slog.LevelDebug {
		t.Errorf("an invalid level changed the log's level to %s", level)
	}
}

// A controller's comparison may take longer than its server gives responses about health.
func TestControllerHasTimeToCompare(t *testing.T) {
	server := httptest.NewUnstartedServer(admin.DiffHandler(func(context.Context) (admin.Diff, error) { return admin.Diff{InStep: true}, nil }))
	server.Config.WriteTimeout = time.Nanosecond
	server.Start()
	defer server.Close()
	client := admin.Client{Controller: server.Listener.Addr().String()}
	if diff, err := client.Diff(t.Context()); err != nil || !diff.InStep {
		t.Errorf("%+v, %v", diff, err)
	}
}

// TestFailuresAreReported checks that an error of the agent, and a panic, fail only their own request.
func TestFailuresAreReported(t *testing.T) {
	s := &admin.Server{
		State: func() admin.State { panic("broken") }, Level: &slog.LevelVar{},
		Diff: func(context.Context) (admin.Diff, error) {
			return admin.Diff{}, errors.New("waiting for the API server")
		},
	}
	client := &admin.Client{Socket: serve(t, s, os.Geteuid())}
	if _, err := client.State(t.Context()); err == nil || !strings.Contains(err.Error(), "broken") {
		t.Errorf("state: %v", err)
	}
	if _, err := client.Diff(t.Context()); err == nil || err.Error() != "waiting for the API server" {
		t.Errorf("diff: %v", err)
	}
}

// TestOnlyItsUser checks that other users can neither use the directory and the socket nor connect.
func TestOnlyItsUser(t *testing.T) {
	s := &admin.Server{State: sample, Level: &slog.LevelVar{}}
	socket := serve(t, s, os.Geteuid()+1)
	for path, want := range map[string]os.FileMode{filepath.Dir(socket): 0o700, socket: 0o600} {
		if info, err := os.Lstat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v; want mode %o", path, info.Mode(), err, want)
		}
	}
	if _, err := (&admin.Client{Socket: socket}).State(t.Context()); err == nil || !strings.Contains(err.Error(), "serves user") {
		t.Errorf("another user was answered: %v", err)
	}
}

// TestRequestsAreBounded checks that an endless body, another path and another method are refused with an error message.
func TestRequestsAreBounded(t *testing.T) {
	s := &admin.Server{State: sample, Level: &slog.LevelVar{}}
	socket := serve(t, s, os.Geteuid())
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(context.Context, string, string) (net.Conn, error) {
		return net.DialTimeout("unix", socket, patience)
	}}
	for _, test := range []struct {
		name, method, path, body string
		status                   int
	}{
		{"too large", http.MethodPut, "/v1/log-level", `{"level":"` + strings.Repeat("x", 1<<20), http.StatusBadRequest},
		{"no JSON", http.MethodPut, "/v1/log-level", "debug", http.StatusBadRequest},
		{"another field", http.MethodPut, "/v1/log-level", `{"lvl":"debug"}`, http.StatusBadRequest},
		{"another path", http.MethodGet, "/v2/state", "", http.StatusNotFound},
		{"another method", http.MethodPost, "/v1/diff", "", http.StatusNotFound},
	} {
		t.Run(test.name, func(t *testing.T) {
			request, err := http.NewRequestWithContext(t.Context(), test.method, "http://weft"+test.path, strings.NewReader(test.body))
			if err != nil {
				t.Fatal(err)
			}
			answer, err := transport.RoundTrip(request)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = answer.Body.Close() }()
			body, err := io.ReadAll(answer.Body)
			if err != nil || answer.StatusCode != test.status || !strings.HasPrefix(string(body), `{"error":`) {
				t.Errorf("status %d, body %s, %v", answer.StatusCode, body, err)
			}
		})
	}
}

// TestAgentAway checks that the error says what to do if the agent does not run, or does not answer.
func TestAgentAway(t *testing.T) {
	never := filepath.Join(t.TempDir(), "never.sock")
	if _, err := (&admin.Client{Socket: never}).State(t.Context()); err == nil || !strings.Contains(err.Error(), "no agent runs here") {
		t.Errorf("never there: %v", err)
	}
	silent := filepath.Join(t.TempDir(), "silent.sock")
	listener, err := net.Listen("unix", silent)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := (&admin.Client{Socket: silent}).State(ctx); err == nil || !strings.Contains(err.Error(), "did not answer in time") {
		t.Errorf("silent: %v", err)
	}
}
