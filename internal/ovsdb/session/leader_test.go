package session

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"testing"
)

// TestDeposed: a server that stops leading ends the session while the connection is alive.
func TestDeposed(t *testing.T) {
	client, server := net.Pipe()
	replies := make(chan error, 1)
	go func() {
		defer func() { _ = server.Close() }()
		if _, err := server.Read(make([]byte, 1<<16)); err != nil {
			replies <- err
			return
		}
		_, err := io.WriteString(server, `{"id": 1, "error": null, "result": {"Database": {"u": {"initial":
			{"name": "Shelf", "model": "clustered", "leader": true, "connected": true}}}}}
			{"id": null, "method": "update2", "params": ["_Server", {"Database": {"u": {"modify": {"leader": false}}}}]}`)
		replies <- err
	}()
	s, err := watchLeader(t.Context(), Config{Database: "Shelf", connect: func(context.Context, string, *tls.Config) (net.Conn, error) {
		return client, nil
	}}, "unix:server")
	if err != nil && !errors.Is(err, errNotLeader) { // the update may be faster than the first look
		t.Fatal(err)
	}
	if err == nil {
		s.awaitDeposed(t.Context(), "Shelf")
		s.close()
		if s.leads("Shelf") {
			t.Error("the session has not noticed that another server leads")
		}
	}
	if err := <-replies; err != nil {
		t.Error(err)
	}
}
