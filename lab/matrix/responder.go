package matrix

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"weft.dev/weft/lab/ground"
)

// The requests of the matrix; agnhost's netexec answers them as well.
const (
	pathName   = "/hostname" // answers with the receiver's name
	pathSource = "/clientip" // answers with the sender's address and port
	podPort    = 8080        // where netexec listens
)

// responder answers in namespaces without a server: hosts, and pods without containers.
type responder struct {
	server *http.Server
	port   uint16
}

// respond starts a responder; port 0 uses any free port.
func respond(netns, name string, port uint16) (*responder, error) {
	var l net.Listener
	err := ground.Do(netns, func() (err error) {
		l, err = net.Listen("tcp4", fmt.Sprintf("0.0.0.0:%d", port))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("answer for %s: %w", name, err)
	}
	at, ok := l.Addr().(*net.TCPAddr)
	if !ok {
		return nil, errors.Join(fmt.Errorf("answer for %s: listening on %s", name, l.Addr()), l.Close())
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+pathName, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, name) })
	mux.HandleFunc("GET "+pathSource, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.RemoteAddr) })
	r := &responder{port: uint16(at.Port), server: &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}}
	go func() { _ = r.server.Serve(l) }() // ends with close; later requests then report a missing server
	return r, nil
}

func (r *responder) close() error { return r.server.Close() }
