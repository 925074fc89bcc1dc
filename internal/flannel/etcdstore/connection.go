package etcdstore

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"weft.dev/weft/internal/flannel/netconf"
)

// connection is the connection to etcd, with the keys of one flannel network.
type connection struct {
	client *clientv3.Client
	prefix string
	log    *slog.Logger
}

func tlsConfig(f netconf.EtcdFlags) (*tls.Config, error) {
	out := &tls.Config{MinVersion: tls.VersionTLS12}
	if f.CAFile != "" {
		pem, err := os.ReadFile(f.CAFile)
		if err != nil {
			return nil, fmt.Errorf("--etcd-cafile: %w", err)
		}
		if out.RootCAs = x509.NewCertPool(); !out.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("--etcd-cafile=%s: no certificate in PEM form in it", f.CAFile)
		}
	}
	if f.CertFile != "" {
		pair, err := tls.LoadX509KeyPair(f.CertFile, f.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("--etcd-certfile=%s, --etcd-keyfile=%s: %w", f.CertFile, f.KeyFile, err)
		}
		out.Certificates = []tls.Certificate{pair}
	}
	return out, nil
}

func (c *connection) configKey() string { return path.Join(c.prefix, "config") }

func (c *connection) subnetsPrefix() string { return path.Join(c.prefix, "subnets") + "/" }

// again runs f until it succeeds. Each error is logged once.
func (c *connection) again(ctx context.Context, what string, f func(ctx context.Context) error) error {
	last := ""
	for {
		bounded, cancel := context.WithTimeout(ctx, requestTimeout)
		err := f(bounded)
		cancel()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%s: %w", what, errors.Join(ctx.Err(), err))
		}
		if err.Error() != last {
			last = err.Error()
			c.log.Warn("etcd request failed; trying again", "request", what, "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(retry):
		}
	}
}
