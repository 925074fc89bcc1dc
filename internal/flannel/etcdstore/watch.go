package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"weft.dev/weft/internal/flannel/lease"
)

// Run keeps the node's lease alive and reports the leases of other nodes until ctx ends, or until the node's generation has to restart.
func (s *Store) Run(ctx context.Context, own lease.Lease, report func(lease.Update)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var alive <-chan *clientv3.LeaseKeepAliveResponse
	if s.own.lease != 0 {
		var err error
		if alive, err = s.client.KeepAlive(ctx, s.own.lease); err != nil {
			return fmt.Errorf("keep the lease %s alive: %w", s.own.key, err)
		}
	}
	configs := s.configuration.watch(ctx)
	for {
		var revision int64
		err := s.again(ctx, "list leases", func(ctx context.Context) error {
			all, err := s.lastListing(ctx)
			if err != nil {
				return err
			}
			revision = all.revision
			return s.all(all.records, report)
		})
		if err != nil {
			return err
		}
		watch := s.client.Watch(clientv3.WithRequireLeader(ctx), s.subnetsPrefix(), clientv3.WithPrefix(), clientv3.WithRev(revision+1))
		if err := s.follow(ctx, events{alive, configs, watch}, report); !errors.Is(err, errRelist) {
			return err
		}
		configs = s.configuration.watch(ctx)
	}
}

// errRelist reports that a watch ended, for example after a compaction: everything has to be listed again.
var errRelist = errors.New("the watch ended")

func (s *Store) all(records []record, report func(lease.Update)) error {
	update := lease.Update{All: true, Set: map[string]lease.Claim{}, Problems: map[string]error{}}
	held := false
	for _, r := range records {
		if s.subnetsPrefix()+r.key == s.own.key {
			held = true
			continue
		}
		add(&update, r)
	}
	report(update)
	if !held {
		report(lease.Update{Restart: errLost})
	}
	return nil
}

// errLost is the reason for a restart if the own lease is lost.
var errLost = errors.New("own lease is gone from etcd")

func add(update *lease.Update, r record) {
	update.Set[r.key] = lease.Claim{Since: r.created, Lease: r.lease}
	if r.problem != nil {
		update.Problems[r.key] = r.problem
	}
}

type events struct {
	alive          <-chan *clientv3.LeaseKeepAliveResponse
	configs, watch clientv3.WatchChan
}

func (s *Store) follow(ctx context.Context, e events, report func(lease.Update)) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case _, ok := <-e.alive:
			if !ok {
				report(lease.Update{Restart: errLost}) // without effect if ctx ended it
				e.alive = nil
			}
		case answer, ok := <-e.configs:
			if !ok || answer.Err() != nil {
				if err := s.configuration.compare(ctx, report); err != nil {
					return err
				}
				return errRelist
			}
			s.configuration.written(answer, report)
		case answer, ok := <-e.watch:
			if !ok || answer.Err() != nil {
				s.log.Debug("watch of leases ended; listing them anew", "error", answer.Err())
				return errRelist
			}
			s.deltas(answer, report)
		}
	}
}

func (s *Store) deltas(answer clientv3.WatchResponse, report func(lease.Update)) {
	update := lease.Update{Set: map[string]lease.Claim{}, Problems: map[string]error{}}
	gone := map[string]bool{}
	for _, event := range answer.Events {
		key := string(event.Kv.Key)
		name := strings.TrimPrefix(key, s.subnetsPrefix())
		switch {
		case key == s.own.key && event.Type == clientv3.EventTypeDelete:
			update.Restart = errLost
		case key == s.own.key:
			if clientv3.LeaseID(event.Kv.Lease) != s.own.lease {
				s.log.Warn("another program has written this node's lease: does flanneld run on this node, or has another node this public address?",
					"key", key, "value", string(event.Kv.Value))
			}
		case event.Type == clientv3.EventTypeDelete:
			delete(update.Set, name)
			delete(update.Problems, name)
			gone[name] = true
		default:
			delete(gone, name)
			delete(update.Problems, name)
			add(&update, s.record(key, string(event.Kv.Value), clientv3.LeaseID(event.Kv.Lease), event.Kv.CreateRevision))
		}
	}
	for name := range gone {
		update.Delete = append(update.Delete, name)
	}
	report(update)
}
