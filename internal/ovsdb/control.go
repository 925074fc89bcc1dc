package ovsdb

import (
	"context"
	"io"
	"net"
	"path/filepath"
	"time"

	"github.com/cenkalti/backoff/v4"

	"weft.dev/weft/internal/ovsdb/confdb"
	"weft.dev/weft/internal/ovsdb/session"
)

// watchSwitch reports restarts of ovs-vswitchd. A switch that restarts on the same database writes nothing there, because numbers and
// states are already correct. So the engine keeps an idle connection to the switch's control socket, which ends with the process.
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

// dialSwitch connects to the first socket of the pattern that answers; a killed switch leaves its socket behind. prompt is true if a
// socket answered at the first attempt. conn is nil if ctx is done.
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

// awaitEnd waits until the other side closes the connection or ctx is done, and then closes it.
func awaitEnd(ctx context.Context, conn net.Conn) {
	stop := context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Unix(0, 1)) })
	defer stop()
	_, _ = io.Copy(io.Discard, conn) // every result means that the connection has ended
	_ = conn.Close()
}

// reconfigured returns once the switch has made its bridges from the database: the new process applies a configuration number that was
// written after it started. It returns false if ctx is done.
func (e *Engine) reconfigured(ctx context.Context) bool {
	err := e.keeper.Do(ctx, func(s *session.Session) error {
		root := confdb.RootOf(s)
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
		return confdb.Applied(ctx, s, cfg)
	})
	return ctx.Err() == nil && err == nil
}
