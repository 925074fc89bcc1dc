package cniserver_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/cni/cniserver"
	"weft.dev/weft/internal/cni/cnitest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is the time limit of waits for expected events.
const patience = 20 * time.Second

func request(command cni.Command) *cni.Request {
	return &cni.Request{
		Command: command, ContainerID: "3f9c", IfName: "eth0", Netns: "/var/run/netns/cni-1",
		Config: json.RawMessage(`{"cniVersion":"1.1.0","name":"weft","type":"weft","cni.dev/valid-attachments":[]}`),
	}
}

// served is a running server.
type served struct {
	socket string
	stop   context.CancelFunc
	done   chan error
}

// serve runs a server until the test ends.
func serve(t *testing.T, server *cniserver.Server) *served {
	t.Helper()
	return serveUID(t, server, uint32(os.Geteuid())) //nolint:gosec // Uids fit.
}

func serveUID(t *testing.T, server *cniserver.Server, uid uint32) *served {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "cni", "cni.sock")
	listener, err := cniserver.Listen(socket, uid)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	s := &served{socket: socket, stop: cancel, done: make(chan error, 1)}
	go func() {
		s.done <- server.Serve(ctx, listener)
		close(s.done)
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-s.done; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return s
}

func (s *served) do(ctx context.Context, command cni.Command) error {
	_, err := (&cni.Client{Socket: s.socket}).Do(ctx, request(command))
	return err
}

func wantCode(t *testing.T, err error, code cni.Code, part string) {
	t.Helper()
	var own *cni.Error
	if !errors.As(err, &own) || own.Code != code || !strings.Contains(own.Msg, part) {
		t.Errorf("error %+v (%v), want code %d with %q", own, err, code, part)
	}
}

func TestServeCommands(t *testing.T) {
	handler := &cnitest.Handler{}
	s := serve(t, &cniserver.Server{Handler: handler})
	result, err := (&cni.Client{Socket: s.socket}).Do(t.Context(), request(cni.CommandAdd))
	if err != nil {
		t.Fatal(err)
	}
	if result.CNIVersion != "1.1.0" || len(result.IPs) != 1 || result.IPs[0].Address.String() != "10.128.0.1/14" {
		t.Errorf("result %+v", result)
	}
	wantCode(t, s.do(t.Context(), cni.CommandCheck), cni.CodeInternal, "addresses")
	for _, command := range []cni.Command{cni.CommandStatus, cni.CommandDel, cni.CommandDel, cni.CommandGC} {
		if err := s.do(t.Context(), command); err != nil {
			t.Errorf("%s: %v", command, err)
		}
	}
	wantCode(t, s.do(t.Context(), cni.CommandCheck), cni.CodeUnknownContainer, "3f9c")
	if last := handler.Requests()[0]; last.NetConf == nil || last.NetConf.Name != "weft" {
		t.Errorf("the handler got %+v", last)
	}
}

// TestServePrinted: a client that asks for a version of the specification gets the text to print; in one that does not exist, a Response.
func TestServePrinted(t *testing.T) {
	s := serve(t, &cniserver.Server{Handler: &cnitest.Handler{}})
	client := &cni.Client{Socket: s.socket}
	body, err := json.Marshal(request(cni.CommandAdd))
	if err != nil {
		t.Fatal(err)
	}
	result, err := client.Do(t.Context(), request(cni.CommandAdd))
	if err != nil {
		t.Fatal(err)
	}
	for version, printed := range map[string]bool{"0.3.1": true, "1.0.0": true, "1.1.0": true, "9.9.9": false, "": false} {
		answer, err := client.Send(body, version, patience)
		if err != nil {
			t.Fatal(err)
		}
		text, is := answer.Printed()
		if is != printed {
			t.Errorf("version %q: printed is %t", version, is)
			continue
		}
		if !printed {
			if got, err := answer.Result(request(cni.CommandAdd)); err != nil || got.IPs[0].Address.String() != result.IPs[0].Address.String() {
				t.Errorf("version %q: %+v, %v", version, got, err)
			}
			continue
		}
		want, err := result.GetAsVersion(version)
		if err != nil {
			t.Fatal(err)
		}
		var expected bytes.Buffer
		if err := want.PrintTo(&expected); err != nil || expected.String() != string(text) {
			t.Errorf("version %s: printed %s, want %s", version, text, expected.String())
		}
	}
	s.stop()
	if err := <-s.done; err != nil {
		t.Error(err)
	}
	if _, err := client.Send(body, "1.0.0", patience); !errors.Is(err, cni.ErrAgentAway) {
		t.Errorf("without an agent: %v", err)
	}
}

// TestSendTimeout: a client does not wait longer than it says.
func TestSendTimeout(t *testing.T) {
	release := make(chan struct{})
	before, entered, _ := blocking(release)
	s := serve(t, &cniserver.Server{Handler: &cnitest.Handler{Before: before}})
	body, err := json.Marshal(request(cni.CommandAdd))
	if err != nil {
		t.Fatal(err)
	}
	_, err = (&cni.Client{Socket: s.socket}).Send(body, "1.0.0", time.Second) // time to send the request on a busy machine
	wantCode(t, err, cni.CodeTryAgainLater, "did not answer in time")
	receive(t, "the request", entered)
	close(release)
}

func TestServeErrors(t *testing.T) {
	for name, test := range map[string]struct {
		before func(context.Context, *cni.Request) error
		code   cni.Code
		part   string
	}{
		"own": {func(context.Context, *cni.Request) error {
			return cni.Errorf(cni.CodeLimitedConnectivity, "no route")
		}, cni.CodeLimitedConnectivity, "no route"},
		"wrapped": {func(context.Context, *cni.Request) error {
			return fmt.Errorf("bridge br0: %w", cni.Errorf(cni.CodeTryAgainLater, "busy"))
		}, cni.CodeTryAgainLater, "bridge br0: busy"},
		"other": {func(context.Context, *cni.Request) error { return io.ErrNoProgress }, cni.CodeInternal, "multiple Read calls"},
		"panic": {func(context.Context, *cni.Request) error { panic("at the disco") }, cni.CodePanic, "disco"},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, &cniserver.Server{Handler: &cnitest.Handler{Before: test.before}})
			for range 2 {
				wantCode(t, s.do(t.Context(), cni.CommandAdd), test.code, test.part)
				wantCode(t, s.do(t.Context(), cni.CommandStatus), test.code, test.part)
			}
		})
	}
}

// TestServeLogs: the log has the data that an operator needs.
func TestServeLogs(t *testing.T) {
	var log bytes.Buffer
	var mu sync.Mutex
	s := serve(t, &cniserver.Server{
		Handler: &cnitest.Handler{Before: func(_ context.Context, req *cni.Request) error {
			if req.Command == cni.CommandDel {
				return errors.New("stuck veth")
			}
			return nil
		}},
		Logger: slog.New(slog.NewTextHandler(writerFunc(func(p []byte) (int, error) {
			mu.Lock()
			defer mu.Unlock()
			return log.Write(p)
		}), nil)),
	})
	_ = s.do(t.Context(), cni.CommandAdd)
	_ = s.do(t.Context(), cni.CommandDel)
	s.stop()
	if err := <-s.done; err != nil {
		t.Error(err)
	}
	for _, part := range []string{"command=ADD", "container=3f9c", "interface=eth0", "command=DEL", "code=100", "stuck veth"} {
		if !strings.Contains(log.String(), part) {
			t.Errorf("the log lacks %q:\n%s", part, log.String())
		}
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// post sends a request with net/http only.
func (s *served) post(t *testing.T, method, path string, body io.Reader) (status int, response cni.Response) {
	t.Helper()
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", s.socket)
	}}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://weft"+path, body)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	if err := json.NewDecoder(answer.Body).Decode(&response); err != nil {
		t.Fatalf("%s %s: status %d: %v", method, path, answer.StatusCode, err)
	}
	return answer.StatusCode, response
}

func TestServeRefuses(t *testing.T) {
	handler := &cnitest.Handler{}
	s := serve(t, &cniserver.Server{Handler: handler})
	good, err := json.Marshal(request(cni.CommandAdd))
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		method, path, body string
		status             int
		code               cni.Code
	}{
		"path":          {http.MethodPost, "/", string(good), 404, cni.CodeProtocol},
		"longer path":   {http.MethodPost, cni.Endpoint + "/x", string(good), 404, cni.CodeProtocol},
		"method":        {http.MethodGet, cni.Endpoint, "", 405, cni.CodeProtocol},
		"empty":         {http.MethodPost, cni.Endpoint, "", 400, cni.CodeDecode},
		"garbage":       {http.MethodPost, cni.Endpoint, "\x00\xff{", 400, cni.CodeDecode},
		"unknown field": {http.MethodPost, cni.Endpoint, `{"x":1,` + string(good[1:]), 400, cni.CodeDecode},
		"two":           {http.MethodPost, cni.Endpoint, string(good) + string(good), 400, cni.CodeDecode},
		"field":         {http.MethodPost, cni.Endpoint, strings.Replace(string(good), "3f9c", "../x", 1), 400, cni.CodeInvalidEnvironment},
		"large":         {http.MethodPost, cni.Endpoint, strings.Repeat(" ", cni.MaxBody) + string(good), 413, cni.CodeIO},
	} {
		t.Run(name, func(t *testing.T) {
			status, response := s.post(t, test.method, test.path, strings.NewReader(test.body))
			if status != test.status || response.Error == nil || response.Error.Code != test.code {
				t.Errorf("status %d, error %+v; want %d, code %d", status, response.Error, test.status, test.code)
			}
		})
	}
	if n := len(handler.Requests()); n != 0 {
		t.Errorf("%d requests reached the handler", n)
	}
}

// TestServeStuckClients: clients that send nothing, half a request or garbage do not block others, and are disconnected.
func TestServeStuckClients(t *testing.T) {
	s := serve(t, &cniserver.Server{Handler: &cnitest.Handler{}, ReadTimeout: 3 * time.Second}) // time to send a request on a busy machine
	var stuck []net.Conn
	for _, text := range []string{
		"", "\x00\x01\x02garbage\r\n\r\n", "POST " + cni.Endpoint + " HTTP/1.1\r\nHost: weft\r\nContent-Length: 1000\r\n\r\n{",
		"POST " + cni.Endpoint + " HTTP/1.1\r\nHos", strings.Repeat("x", 64<<10),
	} {
		for range 10 {
			conn, err := net.Dial("unix", s.socket)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			_ = conn.SetDeadline(time.Now().Add(patience))
			_, _ = io.WriteString(conn, text) // The server may have closed the connection by now.
			stuck = append(stuck, conn)
		}
	}
	if err := s.do(t.Context(), cni.CommandStatus); err != nil {
		t.Errorf("behind stuck clients: %v", err)
	}
	for _, conn := range stuck {
		if _, err := io.Copy(io.Discard, conn); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error("a stuck client was not cut off")
		}
	}
}

// blocking returns a hook for a Handler that reports each new request, and then waits for its end.
func blocking(release <-chan struct{}) (before func(context.Context, *cni.Request) error, entered chan struct{}, left chan error) {
	entered, left = make(chan struct{}, 1), make(chan error, 1)
	return func(ctx context.Context, req *cni.Request) error {
		if req.Command != cni.CommandAdd {
			return nil
		}
		entered <- struct{}{}
		select {
		case <-ctx.Done():
			left <- context.Cause(ctx)
			return cni.Errorf(cni.CodeTryAgainLater, "rolled back: %w", context.Cause(ctx))
		case <-release:
			left <- nil
			return nil
		}
	}, entered, left
}

func receive[T any](t *testing.T, what string, ch <-chan T) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(patience):
		t.Fatalf("not in time: %s", what)
		panic("not reached")
	}
}

// TestServeClientLeaves: the context of an abandoned ADD ends, so that its handler can undo it.
func TestServeClientLeaves(t *testing.T) {
	before, entered, left := blocking(nil)
	handler := &cnitest.Handler{Before: before}
	s := serve(t, &cniserver.Server{Handler: handler})
	ctx, leave := context.WithCancel(t.Context())
	answered := make(chan error, 1)
	go func() { answered <- s.do(ctx, cni.CommandAdd) }()
	receive(t, "the ADD to arrive", entered)
	leave()
	if err := receive(t, "the handler's context to end", left); !errors.Is(err, context.Canceled) {
		t.Errorf("the handler's context: %v", err)
	}
	wantCode(t, receive(t, "the client to give up", answered), cni.CodeTryAgainLater, "before it answered")
	if handler.Attached() != 0 {
		t.Error("an abandoned ADD has attached")
	}
}

// TestServeSlowHandler: a handler may take longer than the time limit for reading the request.
func TestServeSlowHandler(t *testing.T) {
	release := make(chan struct{})
	before, entered, left := blocking(release)
	s := serve(t, &cniserver.Server{Handler: &cnitest.Handler{Before: before}, ReadTimeout: time.Second}) // time to send a request on a busy machine
	answered := make(chan error, 1)
	go func() { answered <- s.do(t.Context(), cni.CommandAdd) }()
	receive(t, "the ADD to arrive", entered)
	select {
	case err := <-left:
		t.Fatalf("the handler's context ended with the reading: %v", err)
	case <-time.After(2 * time.Second): // Twice ReadTimeout; nothing may happen meanwhile.
	}
	close(release)
	if err := receive(t, "the answer", answered); err != nil {
		t.Error(err)
	}
}

func TestServeRequestTimeout(t *testing.T) {
	before, _, left := blocking(nil)
	s := serve(t, &cniserver.Server{Handler: &cnitest.Handler{Before: before}, RequestTimeout: 50 * time.Millisecond})
	wantCode(t, s.do(t.Context(), cni.CommandAdd), cni.CodeTryAgainLater, "rolled back")
	if err := receive(t, "the handler's end", left); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the handler's context: %v", err)
	}
}

func TestServeStopsGracefully(t *testing.T) {
	release := make(chan struct{})
	before, entered, _ := blocking(release)
	s := serve(t, &cniserver.Server{Handler: &cnitest.Handler{Before: before}, Grace: patience})
	answered := make(chan error, 1)
	go func() { answered <- s.do(t.Context(), cni.CommandAdd) }()
	receive(t, "the ADD to arrive", entered)
	s.stop()
	for deadline := time.Now().Add(patience); ; {
		if _, err := os.Lstat(s.socket); errors.Is(err, os.ErrNotExist) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the socket is still there")
		}
	}
	if err := s.do(t.Context(), cni.CommandStatus); !errors.Is(err, cni.ErrAgentAway) {
		t.Errorf("a stopping server accepts: %v", err)
	}
	select {
	case err := <-s.done:
		t.Fatalf("Serve returned %v while a request runs", err)
	default:
	}
	close(release)
	if err := receive(t, "the running request's answer", answered); err != nil {
		t.Errorf("the running request: %v", err)
	}
	if err := receive(t, "Serve to return", s.done); err != nil {
		t.Error(err)
	}
}

func TestServeStopsAfterGrace(t *testing.T) {
	before, entered, left := blocking(nil)
	s := serve(t, &cniserver.Server{Handler: &cnitest.Handler{Before: before}, Grace: 50 * time.Millisecond})
	answered := make(chan error, 1)
	go func() { answered <- s.do(t.Context(), cni.CommandAdd) }()
	receive(t, "the ADD to arrive", entered)
	s.stop()
	if err := receive(t, "the handler's end", left); !errors.Is(err, context.Canceled) {
		t.Errorf("the handler's context: %v", err)
	}
	if err := receive(t, "Serve to return", s.done); err != nil {
		t.Error(err)
	}
	wantCode(t, receive(t, "the client's error", answered), cni.CodeTryAgainLater, "")
}

func TestServeConcurrently(t *testing.T) {
	handler := &cnitest.Handler{}
	s := serve(t, &cniserver.Server{Handler: handler})
	var wg sync.WaitGroup
	for n := range 64 {
		wg.Go(func() {
			req := request(cni.CommandAdd)
			req.ContainerID = fmt.Sprint("c", n)
			if _, err := (&cni.Client{Socket: s.socket}).Do(t.Context(), req); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := handler.Attached(); n != 64 {
		t.Errorf("%d attached", n)
	}
}

// TestForeignPeer: a process of another user is refused before its request is read.
func TestForeignPeer(t *testing.T) {
	handler := &cnitest.Handler{}
	s := serveUID(t, &cniserver.Server{Handler: handler}, uint32(os.Geteuid())+1) //nolint:gosec // Uids fit.
	conn, err := net.Dial("unix", s.socket)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(patience))
	answer, err := io.ReadAll(conn) // Nothing was sent: the refusal comes first.
	if err != nil || !strings.Contains(string(answer), "403") || !strings.Contains(string(answer), `"code":101`) {
		t.Errorf("answer %q, %v", answer, err)
	}
	if n := len(handler.Requests()); n != 0 {
		t.Errorf("%d requests reached the handler", n)
	}
}
