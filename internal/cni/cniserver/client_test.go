package cniserver_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"weft.dev/weft/internal/cni"
)

func TestClientAgentAway(t *testing.T) {
	dir := t.TempDir()
	dead := filepath.Join(dir, "dead.sock")
	left, err := net.ListenUnix("unix", &net.UnixAddr{Name: dead, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	left.SetUnlinkOnClose(false)
	_ = left.Close()
	for _, socket := range []string{dead, filepath.Join(dir, "never.sock")} {
		_, err := (&cni.Client{Socket: socket}).Do(t.Context(), request(cni.CommandAdd))
		wantCode(t, err, cni.CodeTryAgainLater, "the weft agent is not running on this node (socket "+socket+"): try again later")
		if !errors.Is(err, cni.ErrAgentAway) {
			t.Errorf("%s: %v", socket, err)
		}
	}
}

// TestClientLength: the client returns when it has the whole answer, and does not wait until the agent closes the connection.
func TestClientLength(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "x.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	const body = `{"result":{"cniVersion":"1.1.0"}}`
	closed := make(chan error, 1)
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			closed <- err
			return
		}
		defer func() { _ = conn.Close() }()
		_, _ = conn.Read(make([]byte, 64<<10))
		for _, part := range []string{"HTTP/1.0 200 OK\r\nContent-", fmt.Sprintf("Length: %d\r\n\r\n", len(body)), body[:9], body[9:]} {
			_, _ = io.WriteString(conn, part)
		}
		_, err = conn.Read(make([]byte, 1)) // until the client closes it
		closed <- err
	}()
	result, err := (&cni.Client{Socket: socket}).Do(t.Context(), request(cni.CommandAdd))
	if err != nil || result == nil {
		t.Errorf("%v, %v", result, err)
	}
	if err := <-closed; !errors.Is(err, io.EOF) {
		t.Error(err)
	}
}

// TestClientStrangeAgent: whatever the answer is, the client returns an error with a code.
func TestClientStrangeAgent(t *testing.T) {
	const head = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"
	for name, test := range map[string]struct {
		answer string
		code   cni.Code
		part   string
	}{
		"silence":   {"", cni.CodeTryAgainLater, "before it answered"},
		"garbage":   {"SSH-2.0-OpenSSH_9.2\r\n", cni.CodeTryAgainLater, "before it answered"},
		"no JSON":   {head + "hello", cni.CodeProtocol, "not from a weft agent"},
		"no result": {head + "{}", cni.CodeProtocol, "no result"},
		"status":    {strings.Replace(head, "200 OK", "502 Bad", 1) + "{}", cni.CodeProtocol, "502"},
		"large":     {head + strings.Repeat(" ", cni.MaxBody+1), cni.CodeProtocol, "larger"},
		"cut short": {"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{", cni.CodeTryAgainLater, "before it answered"},
	} {
		t.Run(name, func(t *testing.T) {
			socket := filepath.Join(t.TempDir(), "x.sock")
			listener, err := net.Listen("unix", socket)
			if err != nil {
				t.Fatal(err)
			}
			done := make(chan struct{})
			go func() {
				defer close(done)
				conn, err := listener.Accept()
				if err != nil {
					return
				}
				defer func() { _ = conn.Close() }()
				_, _ = conn.Read(make([]byte, 64<<10))
				_, _ = io.WriteString(conn, test.answer)
			}()
			_, err = (&cni.Client{Socket: socket}).Do(t.Context(), request(cni.CommandAdd))
			wantCode(t, err, test.code, test.part)
			if errors.Is(err, cni.ErrAgentAway) {
				t.Error("another listener received the request")
			}
			_ = listener.Close()
			<-done
		})
	}
}
