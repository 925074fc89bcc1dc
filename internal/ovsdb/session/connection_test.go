package session_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"weft.dev/weft/internal/ovsdb/session"
)

// script is a server that answers the first request of each connection with an empty copy, sends one more message once proceed is
// closed, and reports what it receives then.
type script struct {
	path     string
	proceed  chan struct{}
	received chan string
}

func newScript(t *testing.T, message string) *script {
	t.Helper()
	s := &script{path: filepath.Join(t.TempDir(), "s"), proceed: make(chan struct{}), received: make(chan string, 100)}
	listener, err := net.Listen("unix", s.path)
	must(t, err)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			s.serve(t.Context(), conn, message)
		}
	}()
	t.Cleanup(func() {
		_ = listener.Close()
		<-ended
	})
	return s
}

func (s *script) serve(ctx context.Context, conn net.Conn, message string) {
	defer func() { _ = conn.Close() }()
	reader := bufio.NewReader(conn)
	if _, err := reader.ReadString('}'); err != nil {
		return
	}
	if _, err := io.WriteString(conn, `{"id": 1, "result": {}, "error": null}`); err != nil {
		return
	}
	select {
	case <-s.proceed:
	case <-ctx.Done():
		return
	}
	if _, err := io.WriteString(conn, message); err != nil {
		return
	}
	for {
		part, err := reader.ReadString('}')
		if err != nil {
			return
		}
		select {
		case s.received <- part:
		default:
		}
	}
}

func (s *script) keep(t *testing.T) *session.Keeper {
	t.Helper()
	k, err := session.Keep(t.Context(), session.Config{
		Database: database, Tables: tables(), Endpoints: []string{"unix:" + s.path}, ProbeInterval: time.Hour,
	})
	must(t, err)
	t.Cleanup(k.Close)
	return k
}

// TestEcho answers the probe of a server, also one that arrives together with large messages.
func TestEcho(t *testing.T) {
	large := `{"id": null, "method": "other", "params": ["` + strings.Repeat("x", 1<<20) + `"]}`
	for name, before := range map[string]string{"alone": "", "after large messages": large + large} {
		t.Run(name, func(t *testing.T) {
			s := newScript(t, before+`{"id": "probe", "method": "echo", "params": ["x"]}`)
			close(s.proceed)
			s.keep(t)
			ctx := within(t)
			for {
				select {
				case got := <-s.received:
					if strings.Contains(got, `"id":"probe"`) && strings.Contains(got, `"result":["x"]`) && strings.Contains(got, `"error":null`) {
						return
					}
				case <-ctx.Done():
					t.Fatal("no answer to the probe")
				}
			}
		})
	}
}

// TestEndsAfterBadMessages ends a session whose copy may no longer match the database.
func TestEndsAfterBadMessages(t *testing.T) {
	for name, message := range map[string]string{
		"no JSON":              `}`,
		"not an update":        `{"id": null, "method": "update2", "params": []}`,
		"unknown row":          `{"id": null, "method": "update2", "params": ["Shelf", {"Box": {"u": {"modify": {"name": "a"}}}}]}`,
		"bad value":            `{"id": null, "method": "update2", "params": ["Shelf", {"Box": {"u": {"insert": {"name": 1}}}}]}`,
		"answer without an ID": `{"id": null, "result": []}`,
	} {
		t.Run(name, func(t *testing.T) {
			server := newScript(t, message)
			ctx := within(t)
			err := server.keep(t).Do(ctx, func(s *session.Session) error {
				close(server.proceed)
				if err := s.Await(ctx, func() bool { return false }); !errors.Is(err, session.ErrLost) {
					t.Errorf("the session goes on: %v", err)
				}
				if _, err := s.Transact(ctx); !errors.Is(err, session.ErrLost) {
					t.Errorf("a transaction of a lost session: %v", err)
				}
				return nil
			})
			must(t, err)
		})
	}
}

// TestRefusedMonitor returns the server's reason.
func TestRefusedMonitor(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", path)
	must(t, err)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			reader := bufio.NewReader(conn)
			_, _ = reader.ReadString('}')
			_, _ = io.WriteString(conn, `{"id": 1, "result": null, "error": {"error": "unknown database"}}`)
			_, _ = io.Copy(io.Discard, reader)
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() {
		_ = listener.Close()
		<-ended
	})
	k := keep(t, session.Config{Endpoints: []string{"unix:" + path}})
	ctx := within(t)
	for { // until the first attempt has failed
		short, cancel := context.WithTimeout(ctx, time.Second)
		err := k.Do(short, func(*session.Session) error { return nil })
		cancel()
		switch {
		case err == nil:
			t.Fatal("a session without a copy")
		case strings.Contains(err.Error(), "unknown database"):
			return
		case ctx.Err() != nil:
			t.Fatalf("the reason is missing: %v", err)
		}
	}
}
