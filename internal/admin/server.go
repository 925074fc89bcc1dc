package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"time"

	"weft.dev/weft/internal/rootsocket"
)

const (
	// maxRequest bounds a request's body, in bytes; the longest is a few words.
	maxRequest = 64 << 10
	// readTimeout is how long a client has to send its request, in all.
	readTimeout = 5 * time.Second
	// answerTimeout is how long an answer may take, and be taken: reading back 100,000 flows is seconds.
	answerTimeout = time.Minute
	// grace is how long answers under way have when the server stops.
	grace = 2 * time.Second
	// maxConnections bounds what is served at once; more wait.
	maxConnections = 16
)

// Server answers operators. Set its fields before Serve; do not copy it afterwards.
type Server struct {
	// State returns how the agent stands, without waiting for anything. Required.
	State func() State
	// Diff reads back what is programmed. Required.
	Diff func(context.Context) (Diff, error)
	// Owners returns whose the flows of a bridge are. Required.
	Owners func(OwnersQuery) (Owners, error)
	// Level is the log's. Required.
	Level *slog.LevelVar
	// Logger gets what is changed by an operator. Nobody does when nil.
	Logger *slog.Logger
}

// failure is the body of an answer that is no success.
type failure struct {
	Error string `json:"error"`
}

// Listen makes the socket at path, for root only.
func Listen(path string, uid uint32) (*rootsocket.Listener, error) {
	return rootsocket.Listen(path, uid, func(reason error) []byte {
		body, err := json.Marshal(failure{"the agent's admin socket: " + reason.Error()})
		if err != nil {
			return []byte("{}") // text is always JSON
		}
		return body
	})
}

// Serve answers on listener until ctx ends, and closes it.
func (s *Server) Serve(ctx context.Context, listener net.Listener) error {
	if s.Logger == nil {
		s.Logger = slog.New(slog.DiscardHandler)
	}
	server := &http.Server{
		Handler: s.routes(), ReadHeaderTimeout: readTimeout, ReadTimeout: readTimeout, WriteTimeout: answerTimeout + readTimeout,
		MaxHeaderBytes: 8 << 10, ErrorLog: slog.NewLogLogger(s.Logger.Handler(), slog.LevelDebug),
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	server.SetKeepAlivesEnabled(false)
	stopped := make(chan error, 1)
	stop := context.AfterFunc(ctx, func() {
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
		defer cancel()
		err := server.Shutdown(limited)
		if err != nil {
			err = server.Close()
		}
		stopped <- err
	})
	err := server.Serve(listener)
	if stop() { // it failed by itself
		return fmt.Errorf("admin socket %s: %w", listener.Addr(), errors.Join(err, server.Close()))
	}
	if err := <-stopped; err != nil {
		return fmt.Errorf("admin socket %s: %w", listener.Addr(), err)
	}
	return nil
}

func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/state", func(w http.ResponseWriter, _ *http.Request) { s.answer(w, s.State(), nil) })
	mux.HandleFunc("GET /v1/diff", s.diff)
	mux.HandleFunc("GET /v1/owners", s.owners)
	mux.HandleFunc("GET /v1/log-level", func(w http.ResponseWriter, _ *http.Request) { s.answer(w, s.level(), nil) })
	mux.HandleFunc("PUT /v1/log-level", s.setLevel)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		s.refuse(w, http.StatusNotFound, fmt.Errorf("this agent does not serve %s %.64q: use the weft command of the agent's release", r.Method, r.URL.Path))
	})
	places := make(chan struct{}, maxConnections)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer s.recover(w)
		select {
		case places <- struct{}{}:
			defer func() { <-places }()
		case <-r.Context().Done():
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, maxRequest)
		mux.ServeHTTP(w, r)
	})
}

// recover makes a panic one request's error.
func (s *Server) recover(w http.ResponseWriter) {
	if reason := recover(); reason != nil {
		s.Logger.Error("admin request panicked", "panic", reason, "stack", string(debug.Stack()))
		s.refuse(w, http.StatusInternalServerError, fmt.Errorf("the agent failed on this request: %v", reason))
	}
}

func (s *Server) diff(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), answerTimeout)
	defer cancel()
	diff, err := s.Diff(ctx)
	s.answer(w, diff, err)
}

func (s *Server) owners(w http.ResponseWriter, r *http.Request) {
	owners, err := s.Owners(OwnersQuery{Bridge: r.URL.Query().Get("bridge"), Policy: r.URL.Query().Get("policy")})
	s.answer(w, owners, err)
}

func (s *Server) level() levelWords { return levelWords{LevelName(s.Level.Level())} }

func (s *Server) setLevel(w http.ResponseWriter, r *http.Request) {
	var words levelWords
	decoder := json.NewDecoder(r.Body)
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&words); err != nil {
		s.refuse(w, http.StatusBadRequest, fmt.Errorf(`the body has to be {"level": "debug"}: %w`, err))
		return
	}
	level, err := ParseLevel(words.Level)
	if err != nil {
		s.refuse(w, http.StatusBadRequest, err)
		return
	}
	if was := s.Level.Level(); was != level {
		s.Level.Set(level)
		s.Logger.Warn("log level changed", "from", LevelName(was), "to", LevelName(level))
	}
	s.answer(w, s.level(), nil)
}

func (s *Server) answer(w http.ResponseWriter, value any, err error) {
	if err != nil {
		s.refuse(w, http.StatusServiceUnavailable, err)
		return
	}
	body, err := json.Marshal(value)
	if err != nil {
		s.refuse(w, http.StatusInternalServerError, fmt.Errorf("encode the response as JSON: %w", err))
		return
	}
	s.write(w, http.StatusOK, body)
}

func (s *Server) refuse(w http.ResponseWriter, status int, reason error) {
	body, err := json.Marshal(failure{reason.Error()})
	if err != nil {
		body = []byte("{}") // text is always JSON
	}
	s.write(w, status, body)
}

func (s *Server) write(w http.ResponseWriter, status int, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	if _, err := w.Write(append(body, '\n')); err != nil {
		s.Logger.Debug("admin response not delivered", "error", err)
	}
}
