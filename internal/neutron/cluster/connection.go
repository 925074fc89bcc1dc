package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"

	"weft.dev/weft/internal/neutron/cloud"
	"weft.dev/weft/internal/neutron/cluster/late"
	"weft.dev/weft/internal/neutron/conf"
	"weft.dev/weft/internal/neutron/openstack"
)

// session is an OpenStack to which the controller has authenticated.
type session struct {
	*cloud.Cloud

	project string // the id of the credentials' project
	opened  time.Time
	groups  singleflight.Group
	// addresses are those of OpenStack's interfaces, which the nodes reach by their own routes.
	addresses []netip.Addr
}

// group returns the security group of a project's pods, which admits IPv6 as well if ipv6 is set. Concurrent calls for networks of one project are merged: otherwise Neutron would
// create two groups with one name.
func (s *session) group(ctx context.Context, project string, ipv6 bool) (string, error) {
	id, err, _ := s.groups.Do(project, func() (any, error) { return s.EnsureGroup(ctx, cloud.Group{Project: project}) })
	if err == nil && ipv6 { // the group exists now
		id, err, _ = s.groups.Do(project+" IPv6", func() (any, error) { return s.EnsureGroup(ctx, cloud.Group{Project: project, IPv6: true}) })
	}
	text, _ := id.(string)
	return text, err
}

// connection authenticates when OpenStack is first needed, so that a controller can start without OpenStack. After a failed authentication
// it reads kubestack.conf again: a changed password needs no restart.
type connection struct {
	path      string
	cluster   string
	transport http.RoundTripper
	log       *slog.Logger
	held      atomic.Pointer[session]
	opening   sync.Mutex
	// attempts make all objects share a failed authentication, and the next attempt. They and late outlive sessions.
	attempts *openstack.Attempts
	late     late.Requests
}

// get returns the session, or why there is none.
func (c *connection) get(ctx context.Context) (*session, error) {
	if held := c.held.Load(); held != nil {
		return held, nil
	}
	c.opening.Lock()
	defer c.opening.Unlock()
	if held := c.held.Load(); held != nil { // authenticated meanwhile; one token is enough
		return held, nil
	}
	opened, err := c.open(ctx)
	if err != nil {
		return nil, err
	}
	c.held.Store(opened)
	return opened, nil
}

func (c *connection) open(ctx context.Context) (*session, error) {
	text, err := os.ReadFile(c.path)
	if err != nil {
		return nil, fmt.Errorf("read OpenStack's configuration: %w", err)
	}
	config, notes, err := conf.Parse(string(text))
	if err != nil {
		return nil, err
	}
	for _, note := range notes {
		c.log.WarnContext(ctx, "configuration read differently", "file", c.path, "note", note)
	}
	client, err := openstack.New(ctx, config.Global, openstack.Options{Transport: c.transport, Attempts: c.attempts})
	if err != nil {
		return nil, err
	}
	c.log.InfoContext(ctx, "authenticated at OpenStack", "project", client.ProjectID)
	return &session{
		Cloud: cloud.New(client, cloud.Config{
			Cluster: c.cluster, ExternalNetwork: config.Global.ExtNetID, LoadBalancer: config.LoadBalancer,
		}),
		project: client.ProjectID, opened: time.Now(), addresses: addressesOf(ctx, client.Hosts()),
	}, nil
}

// addressesOf resolves host names; names without an address are left out.
func addressesOf(ctx context.Context, hosts []string) []netip.Addr {
	var all []netip.Addr
	for _, host := range hosts {
		if addr, err := netip.ParseAddr(host); err == nil {
			all = append(all, addr.Unmap())
			continue
		}
		found, _ := net.DefaultResolver.LookupNetIP(ctx, "ip", host) // a name behind a proxy may have none here
		for _, addr := range found {
			all = append(all, addr.Unmap())
		}
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all)
}

// catalogueTime is how long a catalogue without Octavia is used. The catalogue comes with the token, so that each look at it is an
// authentication, and a cloud may have no Octavia at all.
const catalogueTime = time.Minute

// failed ends a session whose credentials OpenStack refuses, or whose catalogue has had no Octavia for catalogueTime; the next call reads
// the configuration and authenticates again.
func (c *connection) failed(used *session, err error) {
	if used == nil {
		return
	}
	old := errors.Is(err, cloud.ErrNoOctavia) && time.Since(used.opened) >= catalogueTime
	if old || openstack.Unauthorized(err) {
		c.held.CompareAndSwap(used, nil)
	}
}
