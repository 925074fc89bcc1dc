// Package cniserver serves the requests of Weft's CNI plugin in the agent. It is separate from package cni, because the plugin imports
// that: an HTTP server would take the plugin as long to start as everything else.
package cniserver

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
	"runtime/debug"
	"strconv"
	"sync"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"weft.dev/weft/internal/cni"
)

const (
	// DefaultRequestTimeout is the time limit of a Handler for one request. It is half of what a kubelet gives the runtime for a whole
	// sandbox (runtimeRequestTimeout of KubeletConfiguration, 2 minutes).
	DefaultRequestTimeout = time.Minute
	// DefaultGrace is the time that running requests have to finish when the server stops.
	DefaultGrace = 10 * time.Second
	// DefaultReadTimeout is the time that a client has to send its request. The plugin has the complete request when it connects.
	DefaultReadTimeout = 5 * time.Second
)

// Server serves the plugin's requests. Set its fields before Serve; do not copy it afterwards.
type Server struct {
	// Handler executes the requests. Required.
	Handler cni.Handler
	// RequestTimeout is the time limit of one request; DefaultRequestTimeout if zero.
	RequestTimeout time.Duration
	// ReadTimeout is the time limit for reading one request, and for writing its answer; DefaultReadTimeout if zero.
	ReadTimeout time.Duration
	// Grace is the time limit for running requests when the server stops; DefaultGrace if zero.
	Grace time.Duration
	// Logger logs every request with its result; nil: no logs.
	Logger *slog.Logger
	// Observe, if not nil, is called before each request. The function that it returns is called after the request with its error. The
	// Handler gets the returned context, which is the request's or derived from it.
	Observe func(context.Context, *cni.Request, cni.Origin) (context.Context, func(error))

	// mu guards stopping. It also makes sure that no Handler starts after the wait for all of them has begun.
	mu       sync.Mutex
	stopping bool
	running  sync.WaitGroup
}

// Serve serves the requests on listener until ctx is done. Then it accepts no more, and lets running requests finish within Grace. After
// that it cancels the contexts of the remaining ones, and returns nil when no Handler runs any more. It closes the listener.
func (s *Server) Serve(ctx context.Context, listener net.Listener) error {
	s.setDefaults()
	httpServer := &http.Server{
		Handler:           s.routes(),
		ReadHeaderTimeout: s.ReadTimeout,
		ReadTimeout:       s.ReadTimeout,
		WriteTimeout:      s.RequestTimeout + 2*s.ReadTimeout,
		MaxHeaderBytes:    8 << 10,
		ErrorLog:          slog.NewLogLogger(s.Logger.Handler(), slog.LevelDebug),
	}
	httpServer.SetKeepAlivesEnabled(false)

	failed := make(chan error, 1)
	go func() { failed <- httpServer.Serve(listener) }()
	select {
	case err := <-failed:
		err = errors.Join(fmt.Errorf("serving CNI on %s: %w", listener.Addr(), err), httpServer.Close())
		s.wait()
		return err
	case <-ctx.Done():
	}
	s.stop(context.WithoutCancel(ctx), httpServer)
	if err := <-failed; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving CNI on %s: %w", listener.Addr(), err)
	}
	return nil
}

func (s *Server) setDefaults() {
	if s.RequestTimeout == 0 {
		s.RequestTimeout = DefaultRequestTimeout
	}
	if s.ReadTimeout == 0 {
		s.ReadTimeout = DefaultReadTimeout
	}
	if s.Grace == 0 {
		s.Grace = DefaultGrace
	}
	if s.Observe == nil {
		s.Observe = func(ctx context.Context, _ *cni.Request, _ cni.Origin) (context.Context, func(error)) {
			return ctx, func(error) {}
		}
	}
	if s.Logger == nil {
		s.Logger = slog.New(slog.DiscardHandler)
	}
}

func (s *Server) stop(ctx context.Context, httpServer *http.Server) {
	grace, cancel := context.WithTimeout(ctx, s.Grace)
	defer cancel()
	if err := httpServer.Shutdown(grace); err != nil {
		s.Logger.Warn("CNI requests cancelled: the agent stops", "grace", s.Grace)
		if err := httpServer.Close(); err != nil {
			s.Logger.Debug("closing the CNI server", "error", err)
		}
	}
	s.wait()
}

// begin counts a starting Handler. It returns false if the server has stopped.
func (s *Server) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopping {
		return false
	}
	s.running.Add(1)
	return true
}

// wait prevents further Handlers from starting, and returns when none runs.
func (s *Server) wait() {
	s.mu.Lock()
	s.stopping = true
	s.mu.Unlock()
	s.running.Wait()
}

func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc(cni.Endpoint, func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			w.Header().Set("Allow", http.MethodPost)
			s.answer(w, http.StatusMethodNotAllowed, cni.Response{Error: cni.Errorf(cni.CodeProtocol, "method %s is not served, POST is", r.Method)})
			return
		}
		s.serve(w, r)
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		s.answer(w, http.StatusNotFound, cni.Response{Error: cni.Errorf(cni.CodeProtocol, "path %q is not served, %s is", r.URL.Path, cni.Endpoint)})
	})
	return mux
}

// serve answers one request.
func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, cni.MaxBody))
	if tooLarge := new(http.MaxBytesError); errors.As(err, &tooLarge) {
		s.answer(w, http.StatusRequestEntityTooLarge, cni.Response{Error: cni.Errorf(cni.CodeIO, "the request is larger than %d bytes", cni.MaxBody)})
		return
	}
	if err != nil {
		s.answer(w, http.StatusBadRequest, cni.Response{Error: cni.Errorf(cni.CodeIO, "reading the request: %w", err)})
		return
	}
	// From here on, the connection is read only to detect that the client closes it. An expired read deadline would look the same, so there
	// is none.
	if err := http.NewResponseController(w).SetReadDeadline(time.Time{}); err != nil {
		s.answer(w, http.StatusInternalServerError, cni.Response{Error: cni.Errorf(cni.CodeInternal, "connection: %w", err)})
		return
	}
	req, err := cni.ParseRequest(body)
	if err != nil {
		s.Logger.Warn("CNI request refused", "error", err)
		s.answer(w, http.StatusBadRequest, cni.Response{Error: cni.AsError(err)})
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), s.RequestTimeout)
	defer cancel()
	s.handle(ctx, w, req, r.Header.Get)
}

func (s *Server) handle(ctx context.Context, w http.ResponseWriter, req *cni.Request, header func(name string) string) {
	if !s.begin() {
		s.answer(w, http.StatusServiceUnavailable, cni.Response{Error: cni.Errorf(cni.CodeTryAgainLater, "the weft agent stops: try again later")})
		return
	}
	defer s.running.Done()
	start := time.Now()
	ctx, observed := s.Observe(ctx, req, cni.OriginOf(header))
	result, err := s.dispatch(ctx, req)
	observed(err)
	logger := s.Logger.With("command", string(req.Command), "container", req.ContainerID, "interface", req.IfName,
		"pod", req.Args.PodNamespace+"/"+req.Args.PodName, "took", time.Since(start))
	if err != nil {
		failure := cni.AsError(err)
		logger.Warn("CNI request failed", "code", uint(failure.Code), "error", err)
		s.answer(w, http.StatusInternalServerError, cni.Response{Error: failure})
		return
	}
	logger.Info("CNI request done")
	if text := printed(result, header(cni.HeaderPrint)); text != nil {
		w.Header().Set(cni.HeaderPrint, header(cni.HeaderPrint))
		s.write(w, http.StatusOK, text)
		return
	}
	s.answer(w, http.StatusOK, cni.Response{Result: result})
}

// printed returns a result as the plugin prints it in a version of the specification; nil if there is none, or no version is asked for, or
// the result has no form in it: the plugin reports that.
func printed(result *types100.Result, version string) []byte {
	if result == nil || version == "" {
		return nil
	}
	answer, err := result.GetAsVersion(version)
	var text bytes.Buffer
	if err != nil || answer.PrintTo(&text) != nil {
		return nil
	}
	return text.Bytes()
}

// dispatch calls the Handler. A panic of the Handler becomes the error of this request only.
func (s *Server) dispatch(ctx context.Context, req *cni.Request) (result *types100.Result, err error) {
	defer func() {
		if reason := recover(); reason != nil {
			s.Logger.Error("CNI request panicked", "request", req.String(), "panic", reason, "stack", string(debug.Stack()))
			err = cni.Errorf(cni.CodePanic, "the weft agent failed on this request: %v", reason)
		}
	}()
	switch req.Command {
	case cni.CommandAdd:
		return s.add(ctx, req)
	case cni.CommandDel:
		return nil, s.Handler.Del(ctx, req)
	case cni.CommandCheck:
		return nil, s.Handler.Check(ctx, req)
	case cni.CommandStatus:
		return nil, s.Handler.Status(ctx, req)
	case cni.CommandGC:
		return nil, s.Handler.GC(ctx, req)
	default:
		return nil, cni.Errorf(cni.CodeInvalidEnvironment, "CNI_COMMAND: %q is not known", req.Command)
	}
}

func (s *Server) add(ctx context.Context, req *cni.Request) (*types100.Result, error) {
	result, err := s.Handler.Add(ctx, req)
	if err != nil {
		return nil, err
	}
	if result == nil {
		return nil, cni.Errorf(cni.CodeInternal, "the weft agent gave no result for %s", req)
	}
	versioned := *result
	versioned.CNIVersion = types100.ImplementedSpecVersion
	return &versioned, nil
}

func (s *Server) answer(w http.ResponseWriter, status int, response cni.Response) {
	body, err := json.Marshal(response)
	if err != nil {
		status, body = http.StatusInternalServerError, []byte(`{"error":{"code":100,"msg":"the answer cannot be written as JSON"}}`)
		s.Logger.Error("CNI answer cannot be written as JSON", "error", err)
	}
	s.write(w, status, body)
}

func (s *Server) write(w http.ResponseWriter, status int, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	if _, err := w.Write(body); err != nil {
		s.Logger.Debug("CNI answer not delivered", "error", err)
	}
}
