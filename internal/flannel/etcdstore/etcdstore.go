// Package etcdstore stores flannel's leases in etcd (version 3): each node acquires a subnet by creating its key, and holds it by an etcd
// lease that it keeps alive. A key without an etcd lease is a reservation and stays one.
package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"weft.dev/weft/internal/flannel/lease"
	"weft.dev/weft/internal/flannel/netconf"
)

const (
	// ttl of a lease, in seconds: flannel's value.
	ttl = 24 * 60 * 60
	// dialTimeout limits the first connection, requestTimeout a request.
	dialTimeout    = 5 * time.Second
	requestTimeout = 10 * time.Second
	retry          = time.Second
	// acquireTries limits how often subnets are chosen again because another lease was written meanwhile.
	acquireTries = 30
)

// Options of a Store.
type Options struct {
	Flags netconf.EtcdFlags
	// Former and Former6 are the node's former subnets, from subnet.env: they are acquired again if they are free. The subnets that the store
	// acquires replace them.
	Former, Former6 netip.Prefix
	Log             *slog.Logger
}

// Store is the lease store in etcd.
type Store struct {
	*connection

	options       Options
	configuration configuration
	// own is the key that Acquire acquired.
	own holding
	// listed is the last listing that no later step has used: of thousands of leases, each listing takes a while.
	listed *listing
}

// holding is the node's own key.
type holding struct {
	key   string
	lease clientv3.LeaseID // 0: a reservation
}

// New returns a store. It connects on first use.
func New(options Options) (*Store, error) {
	f := options.Flags
	config := clientv3.Config{
		Endpoints: f.Endpoints, Username: f.Username, Password: f.Password, DialTimeout: dialTimeout, Logger: zap.NewNop(),
		DialKeepAliveTime: dialTimeout, DialKeepAliveTimeout: dialTimeout,
	}
	if f.CAFile != "" || f.CertFile != "" {
		secure, err := tlsConfig(f)
		if err != nil {
			return nil, err
		}
		config.TLS = secure
	}
	client, err := clientv3.New(config)
	if err != nil {
		return nil, fmt.Errorf("--etcd-endpoints=%s: %w", strings.Join(f.Endpoints, ","), err)
	}
	c := &connection{client: client, prefix: f.Prefix, log: options.Log}
	return &Store{connection: c, options: options, configuration: configuration{connection: c}}, nil
}

// Config returns the network configuration, as soon as etcd has a valid one.
func (s *Store) Config(ctx context.Context) (netconf.Config, error) { return s.configuration.read(ctx) }

// Changed implements the daemon's store.
func (s *Store) Changed(ctx context.Context) error { return s.configuration.changes(ctx) }

// Close closes the connection. The node keeps its lease until the lease expires.
func (s *Store) Close() error { return s.client.Close() }

func (s *Store) families() lease.Families {
	return lease.Families{V4: s.configuration.current.EnableIPv4, V6: s.configuration.current.EnableIPv6}
}

// record is a lease as etcd has it.
type record struct {
	key      string // without the prefix
	lease    lease.Lease
	subnets  [2]netip.Prefix
	public   [2]netip.Addr
	etcd     clientv3.LeaseID
	created  int64
	modified int64
	problem  error
}

// listing is all leases as of a revision.
type listing struct {
	records  []record
	revision int64
}

// list lists all leases.
func (s *Store) list(ctx context.Context) (*listing, error) {
	answer, err := s.client.Get(ctx, s.subnetsPrefix(), clientv3.WithPrefix())
	if err != nil {
		return nil, err
	}
	out := &listing{records: make([]record, 0, len(answer.Kvs)), revision: answer.Header.Revision}
	for _, kv := range answer.Kvs {
		r := s.record(string(kv.Key), string(kv.Value), clientv3.LeaseID(kv.Lease), kv.CreateRevision)
		r.modified = kv.ModRevision
		out.records = append(out.records, r)
	}
	return out, nil
}

// lastListing returns the listing of the step before, or a new one.
func (s *Store) lastListing(ctx context.Context) (*listing, error) {
	if last := s.listed; last != nil {
		s.listed = nil
		return last, nil
	}
	return s.list(ctx)
}

func (s *Store) record(key, value string, id clientv3.LeaseID, created int64) record {
	r := record{key: strings.TrimPrefix(key, s.subnetsPrefix()), etcd: id, created: created}
	r.lease, r.public, r.problem = lease.FromEtcd(r.key, value, s.families())
	if subnet, subnet6, err := lease.ParseKey(r.key); err == nil { // also if the value is invalid
		r.subnets = [2]netip.Prefix{subnet, subnet6}
	}
	return r
}

// Public implements the daemon's store: with etcd the administrator cannot configure a node's addresses.
func (s *Store) Public(context.Context) ([2]netip.Addr, error) { return [2]netip.Addr{}, nil }

// Former returns the lease in etcd with one of the public addresses of l.
func (s *Store) Former(ctx context.Context, l lease.Lease) (lease.Lease, error) {
	var out lease.Lease
	err := s.again(ctx, "list leases", func(ctx context.Context) error {
		var err error
		if s.listed, err = s.list(ctx); err != nil {
			return err
		}
		if r, ok := s.mine(s.listed.records, l); ok {
			out = r.lease
		}
		return nil
	})
	return out, err
}

// mine returns the node's record: the one that the store has acquired, also after the node's address changed; else the one with its public
// address, of either family.
func (s *Store) mine(records []record, l lease.Lease) (record, bool) {
	for _, r := range records {
		if s.subnetsPrefix()+r.key == s.own.key && r.etcd == s.own.lease {
			return r, true
		}
	}
	for _, r := range records {
		if (l.PublicIP.IsValid() && r.public[0] == l.PublicIP) || (l.PublicIP6.IsValid() && r.public[1] == l.PublicIP6) {
			return r, true
		}
	}
	return record{}, false
}

// errTaken reports that the listing by which a subnet was chosen is out of date.
var errTaken = errors.New("another lease was written meanwhile")

// Acquire acquires subnets for the node: its current ones, its former ones, or free ones.
func (s *Store) Acquire(ctx context.Context, l lease.Lease) (lease.Lease, error) {
	tries := 0
	err := s.again(ctx, "acquire a lease", func(ctx context.Context) error {
		for ; tries < acquireTries; tries++ {
			taken, err := s.acquire(ctx, l)
			if err == nil {
				l, s.options.Former, s.options.Former6 = taken, taken.Subnet, taken.Subnet6
				return nil
			}
			if !errors.Is(err, errTaken) {
				return err
			}
		}
		tries = 0
		return errTaken
	})
	return l, err
}

// acquire acquires subnets by a listing of the leases. If another lease was written since, the put's condition does not hold. What follows
// the leases then begins with this listing.
func (s *Store) acquire(ctx context.Context, l lease.Lease) (lease.Lease, error) {
	all, err := s.lastListing(ctx)
	if err != nil {
		return lease.Lease{}, err
	}
	pools := s.pools()
	if r, ok := s.mine(all.records, l); ok {
		if pools.fit(r.subnets) {
			l.Subnet, l.Subnet6 = r.subnets[0], r.subnets[1]
			if err = s.put(ctx, l, &r, all.revision); err == nil {
				s.listed = all
			}
			return l, err
		}
		s.log.Info("own lease does not fit the network configuration; it is given up", "key", r.key)
		if _, err := s.client.Delete(ctx, s.subnetsPrefix()+r.key); err != nil {
			return lease.Lease{}, err
		}
		all.records = slices.DeleteFunc(all.records, func(other record) bool { return other.key == r.key })
	}
	subnets, err := pools.choose(all.records)
	if err != nil {
		return lease.Lease{}, err
	}
	l.Subnet, l.Subnet6 = subnets[0], subnets[1]
	if err = s.put(ctx, l, nil, all.revision); err == nil {
		all.records = append(all.records, record{key: lease.FormatKey(l.Subnet, l.Subnet6)})
		s.listed = all
	}
	return l, err
}

// pools returns the pools of the configuration in use.
func (s *Store) pools() pools {
	config := &s.configuration.current
	return pools{
		{config.Subnets4, config.EnableIPv4, s.options.Former},
		{config.Subnets6, config.EnableIPv6, s.options.Former6},
	}
}

// put writes the node's key. With r, the node already owns the key: a reservation keeps having no etcd lease. Without r, the key is
// created, if no lease was written since the listing with that revision: the same or an overlapping subnet may be in another key, because
// a key has the subnets of both families.
func (s *Store) put(ctx context.Context, l lease.Lease, r *record, revision int64) error {
	name := lease.FormatKey(l.Subnet, l.Subnet6)
	key := s.subnetsPrefix() + name
	id, granted := clientv3.LeaseID(0), false
	condition := clientv3.Compare(clientv3.ModRevision(s.subnetsPrefix()), "<", revision+1).WithPrefix()
	if r != nil {
		id, condition = r.etcd, clientv3.Compare(clientv3.ModRevision(key), "=", r.modified)
		if id != 0 {
			if left, err := s.client.TimeToLive(ctx, id); err != nil || left.TTL <= 0 {
				id, granted = 0, true
			}
		}
	}
	if r == nil || granted {
		grant, err := s.client.Grant(ctx, ttl)
		if err != nil {
			return err
		}
		id, granted = grant.ID, true
	}
	answer, err := s.client.Txn(ctx).If(condition).Then(clientv3.OpPut(key, lease.FormatValue(&l), clientv3.WithLease(id))).Commit()
	if err == nil && !answer.Succeeded {
		err = errTaken
	}
	if err != nil {
		if granted {
			_, revokeErr := s.client.Revoke(ctx, id)
			err = errors.Join(err, revokeErr)
		}
		return err
	}
	s.own = holding{key: key, lease: id}
	return nil
}

// Publish implements the daemon's store: Acquire has written the lease.
func (s *Store) Publish(context.Context, lease.Lease) error { return nil }

// Up implements the daemon's store: etcd has no field for it.
func (s *Store) Up(context.Context) error { return nil }
