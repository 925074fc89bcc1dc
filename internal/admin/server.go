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
	"sync"
	"time"

	"weft.dev/weft/internal/rootsocket"
)

const (
	// maxRequest is the maximum size of a request's body, in bytes; real ones are a few words.
	maxRequest = 64 << 10
	// readTimeout is how long a client has to send its whole request.
	readTimeout = 5 * time.Second
	// answerTimeout bounds both the creation and the transfer of a response: reading back 100,000 flows takes seconds.
	answerTimeout = time.Minute
	// grace is how long responses in progress may take when the server stops.
	grace = 2 * time.Second
	// maxConnections is the maximum number of requests served at once; further ones wait.
	maxConnections = 16
)

// Server serves operators' requests. Set its fields before Serve; do not copy it afterwards.
type Server struct {
	// State returns the state of the agent, and does not block. Required.
	State func() State
	// Diff reads back what is programmed. Required.
	Diff func(context.Context) (Diff, error)
	// Owners returns the owners of the flows of a bridge. Required.
	Owners func(OwnersQuery) (Owners, error)
	// Level is the level of the agent's log. Required.
	Level *slog.LevelVar
	// Logger logs changes made by an operator. Nil: discarded.
	Logger *slog.Logger
}

// failure is the body of an error response.
type failure struct {
	Error string `json:"error"`
}

// Listen creates the socket at path, for the user uid only.
func Listen(path string, uid uint32) (*rootsocket.Listener, error) {
	return rootsocket.Listen(path, uid, func(reason error) []byte {
		body, err := json.Marshal(failure{"the agent's admin socket: " + reason.Error()})
		if err != nil {
			return []byte("{}") // a string can always be encoded
		}
		return body
	})
}

// Serve serves on listener until ctx ends, and closes it.
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
	if stop() { // Serve failed before ctx ended
		return fmt.Errorf("admin socket %s: %w", listener.Addr(), errors.Join(err, server.Close()))
	}
	if err := <-stopped; err != nil {
		return fmt.Errorf("admin socket %s: %w", listener.Addr(), err)
	}
	return nil
}

// DiffPath is the path of the differences between programmed and desired state.
const DiffPath = "/v1/diff"

// DiffHandler serves the differences alone, for a controller, whose address others than root may reach. It makes one comparison at a time.
func DiffHandler(diff func(context.Context) (Diff, error)) http.Handler {
	s := &Server{Diff: diff, Logger: slog.New(slog.DiscardHandler)}
	var comparing sync.Mutex
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !comparing.TryLock() {
			s.refuse(w, http.StatusServiceUnavailable, errors.New("another comparison is not complete yet: try again"))
			return
		}
		defer comparing.Unlock()
		// The server of health and metrics gives other responses less time.
		if err := http.NewResponseController(w).SetWriteDeadline(time.Now().Add(answerTimeout + readTimeout)); err != nil {
			s.refuse(w, http.StatusInternalServerError, err)
			return
		}
		s.diff(w, r)
	})
}

func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/state", func(w http.ResponseWriter, _ *http.Request) { s.answer(w, s.State(), nil) })
	mux.HandleFunc("GET "+DiffPath, s.diff)
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

// recover turns a panic into an error of one request.
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
		body = []byte("{}") // a string can always be encoded
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
