package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"weft.dev/weft/internal/health"
	"weft.dev/weft/internal/metrics"
)

// Readiness is the state that a replica reports to probes.
type Readiness struct {
	metrics *metrics.Controller

	mu sync.Mutex
	// elects says that the replica takes part in the leader election, leads that it is the leader.
	elects, leads bool
	// unread are the kinds of objects that a leader has not read yet.
	unread []string
	// away is the error of the last request to the API server; nil if it was answered.
	away error
}

// NewReadiness returns the readiness of a replica that has not started. It records its metrics in counters.
func NewReadiness(counters *metrics.Controller) *Readiness { return &Readiness{metrics: counters} }

// Server returns the server for probes and scrapes.
func (s *Readiness) Server() *health.Server {
	server := &health.Server{Metrics: s.metrics.Handler()}
	server.Add(health.Check{Name: "leader-election", Run: s.election}, health.Check{Name: "caches", Run: s.caches})
	server.Warn(health.Check{Name: "api-server", Run: s.apiServer})
	return server
}

// election returns nil once the replica is the leader or a candidate.
func (s *Readiness) election() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.elects {
		return errors.New("this replica has not joined the leader election yet")
	}
	return nil
}

// caches returns nil when all objects have been read. A replica that is not the leader reads none.
func (s *Readiness) caches() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leads && len(s.unread) > 0 {
		return fmt.Errorf("not read yet: %s", strings.Join(slices.Compact(slices.Sorted(slices.Values(s.unread))), ", "))
	}
	return nil
}

// apiServer returns nil while the API server answers. It sends no request: the leader renews its lease every few seconds, and the other
// replicas read it.
func (s *Readiness) apiServer() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.away
}

// Follow updates the readiness from the manager's state.
func (s *Readiness) Follow(mgr manager.Manager) error {
	elects := func(ctx context.Context) error {
		s.mu.Lock()
		s.elects = true
		s.mu.Unlock()
		<-ctx.Done()
		return nil
	}
	leads := func(ctx context.Context) error {
		s.lead(true)
		<-ctx.Done()
		s.lead(false)
		return nil
	}
	return errors.Join(mgr.Add(onEveryReplica(elects)), mgr.Add(manager.RunnableFunc(leads)))
}

func (s *Readiness) lead(leads bool) {
	s.mu.Lock()
	s.leads = leads
	s.mu.Unlock()
	s.metrics.Lead(leads)
}

// onEveryReplica runs on every replica, leader or not.
type onEveryReplica func(context.Context) error

// Start implements manager.Runnable.
func (f onEveryReplica) Start(ctx context.Context) error { return f(ctx) }

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (onEveryReplica) NeedLeaderElection() bool { return false }

// Wrap returns a copy of a client configuration whose requests update the readiness.
func (s *Readiness) Wrap(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return &listener{s, next} })
	return config
}

func (s *Readiness) answered(err error) {
	if errors.Is(err, context.Canceled) {
		return // cancelled by the caller
	}
	if err != nil {
		err = fmt.Errorf("the API server does not answer, and changes wait until it does: %w", err)
	}
	s.mu.Lock()
	s.away = err
	s.mu.Unlock()
}

// listener is a RoundTripper that records whether requests are answered.
type listener struct {
	readiness *Readiness
	next      http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (l *listener) RoundTrip(request *http.Request) (*http.Response, error) {
	answer, err := l.next.RoundTrip(request)
	l.readiness.answered(err)
	return answer, err
}

// WrappedRoundTripper gives client-go access to the wrapped transport.
func (l *listener) WrappedRoundTripper() http.RoundTripper { return l.next }

// Reading returns a source that counts as unread until its objects have been read.
func (s *Readiness) Reading(kind string, from source.TypedSyncingSource[Everything]) source.TypedSource[Everything] {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unread = append(s.unread, kind)
	return &readSource{TypedSyncingSource: from, kind: kind, readiness: s}
}

// readSource is a source that reports when it has been read.
type readSource struct {
	source.TypedSyncingSource[Everything]

	kind      string
	readiness *Readiness
}

// WaitForSync implements source.TypedSyncingSource.
func (r *readSource) WaitForSync(ctx context.Context) error {
	if err := r.TypedSyncingSource.WaitForSync(ctx); err != nil {
		return err
	}
	r.readiness.mu.Lock()
	defer r.readiness.mu.Unlock()
	if at := slices.Index(r.readiness.unread, r.kind); at >= 0 {
		r.readiness.unread = slices.Delete(r.readiness.unread, at, at+1)
	}
	return nil
}

// timed is a reconciler whose runs are measured.
type timed struct {
	name     string
	counters *metrics.Controller
	reconcile.TypedReconciler[Everything]
}

// Reconcile implements reconcile.TypedReconciler.
func (t *timed) Reconcile(ctx context.Context, request Everything) (reconcile.Result, error) {
	begin := time.Now()
	result, err := t.TypedReconciler.Reconcile(ctx, request)
	t.counters.Reconciled(t.name, time.Since(begin), err)
	return result, err
}

// counted is a client whose writes are counted.
type counted struct {
	client.Client

	counters *metrics.Controller
}

// Create implements client.Writer.
func (c *counted) Create(ctx context.Context, obj client.Object, options ...client.CreateOption) error {
	return countWrite(c.counters, "create", c.Client.Create(ctx, obj, options...))
}

// Update implements client.Writer.
func (c *counted) Update(ctx context.Context, obj client.Object, options ...client.UpdateOption) error {
	return countWrite(c.counters, "update", c.Client.Update(ctx, obj, options...))
}

// Patch implements client.Writer. It counts as an update.
func (c *counted) Patch(ctx context.Context, obj client.Object, patch client.Patch, options ...client.PatchOption) error {
	return countWrite(c.counters, "update", c.Client.Patch(ctx, obj, patch, options...))
}

// Delete implements client.Writer.
func (c *counted) Delete(ctx context.Context, obj client.Object, options ...client.DeleteOption) error {
	return countWrite(c.counters, "delete", c.Client.Delete(ctx, obj, options...))
}

// Status implements client.StatusClient.
func (c *counted) Status() client.SubResourceWriter {
	return &countedStatus{c.Client.Status(), c.counters}
}

type countedStatus struct {
	client.SubResourceWriter

	counters *metrics.Controller
}

// Update implements client.SubResourceWriter.
func (c *countedStatus) Update(ctx context.Context, obj client.Object, options ...client.SubResourceUpdateOption) error {
	return countWrite(c.counters, "status", c.SubResourceWriter.Update(ctx, obj, options...))
}

func countWrite(counters *metrics.Controller, verb string, err error) error {
	switch {
	case err == nil:
		counters.Wrote(verb, "ok")
	case Raced(err):
		counters.Wrote(verb, "conflict")
	default:
		counters.Wrote(verb, "error")
	}
	return err
}

// Raced reports whether a write failed because the object was changed, created or deleted at the same time.
func Raced(err error) bool {
	return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err)
}
