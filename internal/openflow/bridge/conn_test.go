package bridge_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/openflow/bridge"
	"weft.dev/weft/internal/openflow/session"
)

// mute is a switch that sends a hello and then nothing.
func mute(t *testing.T, hello string) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	inBackground(t, func(ctx context.Context) error {
		stop := context.AfterFunc(ctx, func() { _ = l.Close() })
		defer stop()
		for {
			nc, err := l.Accept()
			if err != nil {
				return context.Cause(ctx)
			}
			defer func() { _ = nc.Close() }()
			_, _ = io.WriteString(nc, hello)
			go func() { _, _ = io.Copy(io.Discard, nc) }()
		}
	})
	return l.Addr().String()
}

const (
	hello15 = "\x06\x00\x00\x10\x00\x00\x00\x01\x00\x01\x00\x08\x00\x00\x00\x40"
	hello13 = "\x04\x00\x00\x10\x00\x00\x00\x01\x00\x01\x00\x08\x00\x00\x00\x10"
)

func TestDialRefusesASwitchWithout15(t *testing.T) {
	_, err := session.Dial(t.Context(), mute(t, hello13), session.Options{})
	if !errors.Is(err, openflow.ErrVersion) || !strings.Contains(err.Error(), "add OpenFlow15") {
		t.Errorf("%v", err)
	}
}

func TestDialEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := session.Dial(ctx, mute(t, ""), session.Options{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
}

func TestCallsEndWithTheirContextAndWithTheConnection(t *testing.T) {
	c, err := session.Dial(t.Context(), mute(t, hello15), session.Options{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := c.Barrier(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("barrier: %v", err)
	}
	var calls sync.WaitGroup
	for range 10 {
		calls.Go(func() {
			if err := c.Bundle(t.Context(), []openflow.Mod{{Entry: &openflow.Flow{}}}); !errors.Is(err, session.ErrClosed) {
				t.Errorf("bundle on a connection that is closed: %v", err)
			}
		})
	}
	_ = c.Close()
	calls.Wait()
	if err := c.Err(); !errors.Is(err, session.ErrClosed) {
		t.Errorf("%v", err)
	}
}

func TestASilentSwitchIsGivenUp(t *testing.T) {
	c, err := session.Dial(t.Context(), mute(t, hello15), session.Options{KeepAlive: 5 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-c.Done():
	case <-time.After(10 * time.Second):
		t.Fatal("still open")
	}
	if err := c.Err(); !errors.Is(err, session.ErrUnresponsive) || !errors.Is(err, session.ErrClosed) {
		t.Errorf("%v", err)
	}
}

func TestManyCallsShareAConnection(t *testing.T) {
	fake, path := serveFake(t)
	c, err := session.Dial(t.Context(), path, session.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	var calls sync.WaitGroup
	for i := range 20 {
		calls.Go(func() {
			flow := &openflow.Flow{Table: uint8(i), Priority: 1}
			err := errors.Join(c.Echo(t.Context()), c.Bundle(t.Context(), []openflow.Mod{{Entry: flow}}), c.Barrier(t.Context()))
			if _, flowErr := c.Flows(t.Context()); err != nil || flowErr != nil {
				t.Errorf("%v, %v", err, flowErr)
			}
		})
	}
	calls.Wait()
	if state, _ := fake.Read(t.Context()); len(state) != 20 {
		t.Errorf("%d flows, want 20", len(state))
	}
}

func TestConnectionErrorIsReported(t *testing.T) {
	engine := runEngine(t, t.TempDir()+"/none.mgmt")
	event, err := engine.Next(t.Context())
	if err != nil || event.Lost == nil || event.Connected {
		t.Errorf("%+v, %v", event, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := engine.Read(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("reading without a connection: %v", err)
	}
}

// A starting switch gets its connection when it makes its socket, however long the pause between attempts has become.
func TestAnEngineConnectsWhenTheSocketIsMade(t *testing.T) {
	dir, err := os.MkdirTemp("", "wtof") // a unix socket's path has room for 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, "br0.mgmt")
	engine := bridge.NewEngine(bridge.Config{Address: path, RetryMin: time.Hour, RetryMax: time.Hour})
	inBackground(t, engine.Run)
	if event, err := engine.Next(t.Context()); err != nil || event.Lost == nil {
		t.Fatalf("%+v, %v", event, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "other"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	fake := bridge.NewFake()
	inBackground(t, func(ctx context.Context) error { return fake.Serve(ctx, l) })
	limited, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for connected := false; !connected; {
		event, err := engine.Next(limited)
		if err != nil {
			t.Fatalf("not connected: %v", err)
		}
		connected = event.Connected
	}
}
