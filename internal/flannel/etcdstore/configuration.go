package etcdstore

import (
	"context"
	"errors"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"

	"weft.dev/weft/internal/flannel/lease"
	"weft.dev/weft/internal/flannel/netconf"
)

// configuration is the network configuration in etcd, and what has been seen of its key.
type configuration struct {
	*connection

	// current is the configuration in use, and revision its revision; 0: there is none yet.
	current  netconf.Config
	revision int64
	// seen is the revision up to which a newer configuration was searched for.
	seen int64
}

// read returns the network configuration, as soon as etcd has a valid one.
func (c *configuration) read(ctx context.Context) (netconf.Config, error) {
	err := c.again(ctx, "read "+c.configKey(), func(ctx context.Context) error {
		answer, err := c.client.Get(ctx, c.configKey())
		if err != nil {
			return err
		}
		if len(answer.Kvs) == 0 {
			return fmt.Errorf("key %s does not exist: put the network configuration there (etcdctl put %[1]s '{\"Network\":\"10.5.0.0/16\",\"Backend\":{\"Type\":\"vxlan\"}}')", c.configKey())
		}
		config, err := c.parse(answer.Kvs[0].Value)
		if err != nil && c.revision == 0 {
			return err
		}
		if err != nil {
			c.log.Warn("network configuration in etcd is not valid; the former one stays in effect", "error", err)
			config = c.current
		}
		c.current, c.revision, c.seen = config, answer.Kvs[0].ModRevision, answer.Header.Revision
		return nil
	})
	return c.current, err
}

func (c *configuration) parse(text []byte) (netconf.Config, error) {
	config, err := netconf.Parse(text)
	if err == nil {
		config, err = config.Etcd()
	}
	if err != nil {
		return config, fmt.Errorf("value of %s: %w", c.configKey(), err)
	}
	return config, nil
}

// changed checks a new value of the configuration's key, and requests a restart of the generation if it is valid and differs from the
// former one.
func (c *configuration) changed(text []byte, report func(lease.Update)) {
	config, err := c.parse(text)
	switch {
	case err != nil:
		c.log.Warn("network configuration in etcd is not valid; the former one stays in effect", "error", err)
	case config != c.current:
		report(lease.Update{Restart: errors.New("the network configuration in etcd changed")})
	}
}

// changes returns once there is a valid configuration that differs from the one in use.
func (c *configuration) changes(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	changed := false
	note := func(lease.Update) { changed = true }
	for {
		for answer := range c.watch(ctx) {
			if c.written(answer, note); changed {
				return nil
			}
		}
		if err := c.compare(ctx, note); err != nil || changed { // the watch ended
			return err
		}
	}
}

// watch watches for configurations that are written after the last one seen.
func (c *configuration) watch(ctx context.Context) clientv3.WatchChan {
	return c.client.Watch(clientv3.WithRequireLeader(ctx), c.configKey(), clientv3.WithRev(c.seen+1))
}

// written handles the configurations that were written.
func (c *configuration) written(answer clientv3.WatchResponse, report func(lease.Update)) {
	for _, event := range answer.Events {
		if event.Type == clientv3.EventTypePut {
			c.changed(event.Kv.Value, report)
		}
	}
}

// compare compares the configuration after its watch ended.
func (c *configuration) compare(ctx context.Context, report func(lease.Update)) error {
	return c.again(ctx, "read "+c.configKey(), func(ctx context.Context) error {
		answer, err := c.client.Get(ctx, c.configKey())
		if err != nil {
			return err
		}
		c.seen = answer.Header.Revision
		if len(answer.Kvs) > 0 && answer.Kvs[0].ModRevision != c.revision {
			c.changed(answer.Kvs[0].Value, report)
		}
		return nil
	})
}
