// Package reporter answers every request with the source address that it sees: over HTTP, and over UDP on the same port. It runs outside
// of a lab's cluster, where it shows whether pods' traffic to the outside is masqueraded.
package reporter

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

// Run serves on an address until the context ends.
func Run(ctx context.Context, address string) error {
	var lc net.ListenConfig
	udp, err := lc.ListenPacket(ctx, "udp", address)
	if err != nil {
		return fmt.Errorf("listen on %s (udp): %w", address, err)
	}
	tcp, err := lc.Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("listen on %s (tcp): %w", address, err)
	}
	go answerUDP(udp)
	srv := &http.Server{Handler: http.HandlerFunc(answer), ReadHeaderTimeout: 5 * time.Second}
	go func() {
		<-ctx.Done()
		_ = udp.Close()
		_ = srv.Close()
	}()
	if err := srv.Serve(tcp); ctx.Err() == nil {
		return fmt.Errorf("serve on %s: %w", address, err)
	}
	return nil
}

func answer(w http.ResponseWriter, r *http.Request) {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		host = r.RemoteAddr
	}
	_, _ = io.WriteString(w, host+"\n")
}

func answerUDP(c net.PacketConn) {
	buf := make([]byte, 2048)
	for {
		_, from, err := c.ReadFrom(buf)
		if err != nil {
			return
		}
		if host, _, err := net.SplitHostPort(from.String()); err == nil {
			_, _ = c.WriteTo([]byte(host+"\n"), from)
		}
	}
}
