package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"
)

// Health serves /healthz and /readyz as flanneld does, until ctx ends.
func (d *Daemon) Health(ctx context.Context) error {
	flags := d.options.Flags
	if flags.HealthPort == 0 {
		return nil
	}
	address := net.JoinHostPort(flags.HealthIP, strconv.Itoa(flags.HealthPort))
	var listen net.ListenConfig
	listener, err := listen.Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("serve health at %s (--healthz-ip, --healthz-port): %w", address, err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, "flanneld is running") })
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := d.Ready(); err != nil {
			answer(w, http.StatusServiceUnavailable, "flanneld is not ready: "+err.Error())
			return
		}
		answer(w, http.StatusOK, "flanneld is ready")
	})
	const headerTimeout = 5 * time.Second
	server := &http.Server{Handler: mux, ReadHeaderTimeout: headerTimeout}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve health at %s: %w", address, err)
	}
	return nil
}

func answer(w http.ResponseWriter, code int, text string) {
	w.WriteHeader(code)
	_, _ = w.Write([]byte(text)) // an error means that the prober has disconnected
}
