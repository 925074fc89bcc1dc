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

// Readiness is what a replica reports to probes.
type Readiness struct {
	metrics *metrics.Controller

	mu sync.Mutex
	// elects says that the replica takes part in the election, leads that it was chosen.
	elects, leads bool
	// unread are the kinds of objects that a leader has not read yet.
	unread []string
	// away is why the last request to the API server had no answer; nil when it had one.
	away error
}

// NewReadiness returns the readiness of a replica that has not started.
func NewReadiness(told *metrics.Controller) *Readiness { return &Readiness{metrics: told} }

// Server returns what answers probes and scrapes.
func (s *Readiness) Server() *health.Server {
	server := &health.Server{Metrics: s.metrics.Handler()}
	server.Add(health.Check{Name: "leader-election", Run: s.election}, health.Check{Name: "caches", Run: s.caches})
	server.Warn(health.Check{Name: "api-server", Run: s.apiServer})
	return server
}

// election returns nil once the replica leads or waits for its turn.
func (s *Readiness) election() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.elects {
		return errors.New("this replica has not joined the leader election yet")
	}
	return nil
}

// caches returns nil when all objects have been read. A replica that does not lead reads none.
func (s *Readiness) caches() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leads && len(s.unread) > 0 {
		return fmt.Errorf("not read yet: %s", strings.Join(slices.Compact(slices.Sorted(slices.Values(s.unread))), ", "))
	}
	return nil
}

// apiServer returns nil when the API server answers. A leader renews its lease, and the others ask for it, every few
// seconds, so that nothing has to be asked here.
func (s *Readiness) apiServer() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.away
}

// Follow keeps the readiness up to date with the manager.
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

// onEveryReplica is what runs whether the replica leads or not.
type onEveryReplica func(context.Context) error

// Start implements manager.Runnable.
func (f onEveryReplica) Start(ctx context.Context) error { return f(ctx) }

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (onEveryReplica) NeedLeaderElection() bool { return false }

// Wrap returns the configuration of a client whose requests report whether the API server answers.
func (s *Readiness) Wrap(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return &listener{s, next} })
	return config
}

func (s *Readiness) answered(err error) {
	if errors.Is(err, context.Canceled) {
		return // it was not waited for
	}
	if err != nil {
		err = fmt.Errorf("the API server does not answer, and changes wait until it does: %w", err)
	}
	s.mu.Lock()
	s.away = err
	s.mu.Unlock()
}

// listener is a RoundTripper that tells whether requests are answered.
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

// WrappedRoundTripper lets client-go find the transport below.
func (l *listener) WrappedRoundTripper() http.RoundTripper { return l.next }

// Reading returns a source that counts as unread until its objects of that kind have been read.
func (s *Readiness) Reading(kind string, from source.TypedSyncingSource[Everything]) source.TypedSource[Everything] {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unread = append(s.unread, kind)
	return &readSource{TypedSyncingSource: from, kind: kind, readiness: s}
}

// readSource is a source that tells when it was read.
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

// timed is a reconciler whose rounds are counted.
type timed struct {
	name string
	told *metrics.Controller
	reconcile.TypedReconciler[Everything]
}

// Reconcile implements reconcile.TypedReconciler.
func (t *timed) Reconcile(ctx context.Context, request Everything) (reconcile.Result, error) {
	begin := time.Now()
	result, err := t.TypedReconciler.Reconcile(ctx, request)
	t.told.Reconciled(t.name, time.Since(begin), err)
	return result, err
}

// counted is a client whose writes are counted.
type counted struct {
	client.Client

	told *metrics.Controller
}

// Create implements client.Writer.
func (c *counted) Create(ctx context.Context, obj client.Object, options ...client.CreateOption) error {
	return tell(c.told, "create", c.Client.Create(ctx, obj, options...))
}

// Update implements client.Writer.
func (c *counted) Update(ctx context.Context, obj client.Object, options ...client.UpdateOption) error {
	return tell(c.told, "update", c.Client.Update(ctx, obj, options...))
}

// Delete implements client.Writer.
func (c *counted) Delete(ctx context.Context, obj client.Object, options ...client.DeleteOption) error {
	return tell(c.told, "delete", c.Client.Delete(ctx, obj, options...))
}

// Status implements client.StatusClient.
func (c *counted) Status() client.SubResourceWriter { return &countedStatus{c.Client.Status(), c.told} }

type countedStatus struct {
	client.SubResourceWriter

	told *metrics.Controller
}

// Update implements client.SubResourceWriter.
func (c *countedStatus) Update(ctx context.Context, obj client.Object, options ...client.SubResourceUpdateOption) error {
	return tell(c.told, "status", c.SubResourceWriter.Update(ctx, obj, options...))
}

func tell(told *metrics.Controller, verb string, err error) error {
	switch {
	case err == nil:
		told.Wrote(verb, "ok")
	case Raced(err):
		told.Wrote(verb, "conflict")
	default:
		told.Wrote(verb, "error")
	}
	return err
}

// Raced reports whether an object was not written because it changed, came or went meanwhile.
func Raced(err error) bool {
	return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err)
}
