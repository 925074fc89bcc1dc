// Package apifront puts a proxy before the API server of a lab, which answers as a fault requires.
package apifront

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/lab"
	"weft.dev/weft/test/probe"
	"weft.dev/weft/test/traffic"
)

// Front is a proxy between Weft's programs and the API server, on the control plane's own address. It answers as configured, and forwards
// other requests. Existing connections of programs are closed.
type Front struct {
	control string // network namespace
	server  *http.Server
	served  chan struct{}

	mu    sync.Mutex
	conns map[net.Conn]bool
	// seen are the source addresses of connections so far.
	seen map[string]bool
}

// frontPort is the port to which the control plane's own port is redirected while the front is open. Weft's programs use 6443.
const frontPort = 16443

// redirect sends Weft's programs to the front. Their existing connections are reset, because the front does not have them. The
// administrator uses another address.
const redirect = `table ip wtfront {
	chain pre { type nat hook prerouting priority -100; ip daddr %[1]s tcp dport 6443 redirect to :%[2]d; };
	chain out { type nat hook output priority -100; ip daddr %[1]s tcp dport 6443 redirect to :%[2]d; };
	chain cut { type filter hook input priority 0; ip daddr %[1]s tcp dport 6443 reject with tcp reset; };
}`

// Answer handles a request, or passes it to next.
type Answer func(w http.ResponseWriter, r *http.Request, next http.Handler)

// Open puts a front before the API server until Close is called.
func Open(ctx context.Context, c *lab.Cluster, how Answer) (*Front, error) {
	st, err := lab.Inspect(ctx, c.Name())
	if err != nil {
		return nil, err
	}
	f := &Front{control: st.ControlNS, served: make(chan struct{}), conns: map[net.Conn]bool{}, seen: map[string]bool{}}
	keys := filepath.Join(filepath.Dir(c.Kubeconfig), "pki")
	next, err := f.proxy(keys)
	if err != nil {
		return nil, err
	}
	var listener net.Listener
	err = traffic.In(f.control, func() (err error) {
		listener, err = net.Listen("tcp4", fmt.Sprintf("0.0.0.0:%d", frontPort))
		return err
	})
	if err != nil {
		return nil, err
	}
	f.server = &http.Server{
		Handler:           http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { how(w, r, next) }),
		ReadHeaderTimeout: 10 * time.Second, ConnState: f.note,
		ErrorLog: log.New(io.Discard, "", 0), // it breaks connections on purpose
	}
	go func() {
		defer close(f.served)
		_ = f.server.ServeTLS(listener, filepath.Join(keys, "apiserver.crt"), filepath.Join(keys, "apiserver.key")) // until close
	}()
	if _, err := probe.Run(ctx, f.nft(fmt.Sprintf(redirect, c.ControlIP, frontPort))); err != nil {
		return nil, errors.Join(err, f.Close(ctx))
	}
	if err := f.gather(ctx, c); err != nil {
		return nil, errors.Join(err, f.Close(ctx))
	}
	return f, nil
}

// gather waits until the front has a connection of every agent. Existing connections end at the next packet, which a changed object
// causes.
func (f *Front) gather(ctx context.Context, c *lab.Cluster) error {
	hosts, err := probe.Objects(c, networkv1.GroupName, "hostsubnets")
	if err != nil {
		return err
	}
	for _, n := range c.Nodes() {
		touch := fmt.Appendf(nil, `{"metadata":{"annotations":{"example.com/soak":"%d"}}}`, time.Now().UnixNano())
		if _, err := hosts.Patch(ctx, n.Name, types.MergePatchType, touch, metav1.PatchOptions{}); err != nil {
			return err
		}
	}
	_, err = probe.Await(ctx, probe.Patience, "the agents' connections to the API server made anew", func(context.Context) error {
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, n := range c.Nodes() {
			if !f.seen[n.IP.String()] {
				return fmt.Errorf("%s has not asked", n.Name)
			}
		}
		return nil
	})
	return err
}

func (f *Front) nft(args ...string) []string {
	return append([]string{"nsenter", "--net=" + f.control, "--", "nft"}, args...)
}

// proxy forwards requests to the API server, with Weft's identity.
func (f *Front) proxy(keys string) (http.Handler, error) {
	pair, err := tls.LoadX509KeyPair(filepath.Join(keys, "weft.crt"), filepath.Join(keys, "weft.key"))
	if err != nil {
		return nil, err
	}
	ca, err := os.ReadFile(filepath.Join(keys, "ca.crt"))
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	p := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "https", Host: "127.0.0.1:6443"})
	p.FlushInterval, p.ErrorLog = -1, log.New(io.Discard, "", 0)
	p.Transport = &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12},
		DialContext: func(_ context.Context, network, address string) (conn net.Conn, err error) {
			err = traffic.In(f.control, func() (err error) {
				conn, err = net.DialTimeout(network, address, time.Second)
				return err
			})
			return conn, err
		},
	}
	return p, nil
}

func (f *Front) note(conn net.Conn, state http.ConnState) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if state == http.StateClosed || state == http.StateHijacked {
		delete(f.conns, conn)
	} else {
		f.conns[conn] = true
		host, _, _ := net.SplitHostPort(conn.RemoteAddr().String())
		f.seen[host] = true
	}
}

// Cut closes all connections.
func (f *Front) Cut() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for conn := range f.conns {
		_ = conn.Close()
	}
}

// Close removes the front: programs then reach the API server itself again.
func (f *Front) Close(ctx context.Context) error {
	_, err := probe.Run(context.WithoutCancel(ctx), f.nft("delete", "table", "ip", "wtfront"))
	err = errors.Join(err, f.server.Close())
	<-f.served
	return err
}
