package serve

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"weft.dev/weft/internal/neutron/cloud"
	"weft.dev/weft/internal/neutron/conf"
	"weft.dev/weft/internal/neutron/openstack"
)

// connection authenticates at Keystone. Until that has succeeded once, every attempt reads kubestack.conf again: a corrected password needs no
// restart.
type connection struct {
	path     string
	cluster  string
	log      *slog.Logger
	attempts *openstack.Attempts
	held     atomic.Pointer[cloud.Cloud]
	// turn has a value while a caller authenticates: one token is enough.
	turn chan struct{}
}

func newConnection(path, cluster string, log *slog.Logger) *connection {
	return &connection{path: path, cluster: cluster, log: log, attempts: openstack.NewAttempts(), turn: make(chan struct{}, 1)}
}

// get returns OpenStack, or why it is not reachable.
func (c *connection) get(ctx context.Context) (*cloud.Cloud, error) {
	if held := c.held.Load(); held != nil {
		return held, nil
	}
	select {
	case c.turn <- struct{}{}:
		defer func() { <-c.turn }()
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for the authentication at Keystone: %w", ctx.Err())
	}
	if held := c.held.Load(); held != nil {
		return held, nil
	}
	config, _, err := read(c.path)
	if err != nil {
		return nil, err
	}
	client, err := openstack.New(ctx, config.Global, openstack.Options{Attempts: c.attempts})
	if err != nil {
		return nil, err
	}
	c.log.Info("authenticated at OpenStack", "project", client.ProjectID)
	c.held.Store(cloud.New(client, cloud.Config{
		Cluster: c.cluster, ExternalNetwork: config.Global.ExtNetID, LoadBalancer: config.LoadBalancer,
	}))
	return c.held.Load(), nil
}

// unpaced is the delay after a failure that does not determine when Keystone is asked again, such as an unreadable kubestack.conf.
const unpaced = time.Minute

// await authenticates, and tries again until it has succeeded.
func (c *connection) await(ctx context.Context) {
	for {
		_, err := c.get(ctx)
		if err == nil || ctx.Err() != nil {
			return
		}
		left, paced := openstack.Paused(err)
		if !paced {
			left = unpaced
		}
		c.log.Warn("OpenStack is not reachable; calls fail until it is", "error", err, "again_in", left.String())
		again := time.NewTimer(left)
		select {
		case <-ctx.Done():
			again.Stop()
			return
		case <-again.C:
		}
	}
}

// read reads kubestack.conf.
func read(path string) (config conf.Config, notes []string, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return conf.Config{}, nil, fmt.Errorf("read the configuration: %w", err)
	}
	return conf.Parse(string(text))
}
