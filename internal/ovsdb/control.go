package ovsdb

import (
	"context"
	"io"
	"net"
	"path/filepath"
	"time"

	"github.com/cenkalti/backoff/v4"

	"weft.dev/weft/internal/ovsdb/session"
)

// watchSwitch tells when ovs-vswitchd has started anew. A switch that starts on a database which it knows writes
// nothing there: its numbers and states are as it finds them. So the engine holds an idle connection to its control
// socket, which ends with the process.
func (e *Engine) watchSwitch(ctx context.Context) {
	if e.config.ControlSocket == "" {
		return
	}
	for first := true; ; first = false {
		conn, prompt := e.dialSwitch(ctx)
		if conn == nil {
			return
		}
		if (!first || !prompt) && e.reconfigured(ctx) {
			e.config.Logger.Info("ovs-vswitchd has started anew", "endpoint", e.config.Endpoint)
			e.events.post(Event{Kind: EventSwitchRestarted})
		}
		awaitEnd(ctx, conn)
		if ctx.Err() != nil {
			return
		}
		e.config.Logger.Warn("ovs-vswitchd has ended", "endpoint", e.config.Endpoint)
	}
}

// dialSwitch connects to whichever of the sockets of the pattern answers; a switch that was killed leaves its own
// behind. prompt says that one answered without being waited for. Nil means that ctx is done.
func (e *Engine) dialSwitch(ctx context.Context) (conn net.Conn, prompt bool) {
	pause := backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(redialFirst), backoff.WithMaxInterval(redialLast), backoff.WithMaxElapsedTime(0))
	var dialer net.Dialer
	for prompt = true; ; prompt = false {
		paths, _ := filepath.Glob(e.config.ControlSocket) // the error is for a bad pattern, which matches nothing
		for _, path := range paths {
			if conn, err := dialer.DialContext(ctx, "unix", path); err == nil {
				return conn, prompt
			}
		}
		if !wait(ctx, pause.NextBackOff()) {
			return nil, false
		}
	}
}

// awaitEnd returns when the other end has closed the connection or ctx is done, and closes it.
func awaitEnd(ctx context.Context, conn net.Conn) {
	stop := context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Unix(0, 1)) })
	defer stop()
	_, _ = io.Copy(io.Discard, conn) // whatever ends it, it has ended
	_ = conn.Close()
}

// reconfigured returns once the switch has made its bridges from the database: the new process says so by applying a
// configuration number that only it can have seen. It returns false when ctx is done.
func (e *Engine) reconfigured(ctx context.Context) bool {
	err := e.keeper.Do(ctx, func(s *session.Session) error {
		root := rootOf(s)
		if root == nil {
			return nil
		}
		results, err := s.Transact(ctx, nextConfiguration(root)...)
		if err != nil || len(results) != 2 {
			return err
		}
		cfg, err := nextCfg(results[1])
		if err != nil {
			return err
		}
		return applied(ctx, s, cfg)
	})
	return ctx.Err() == nil && err == nil
}
