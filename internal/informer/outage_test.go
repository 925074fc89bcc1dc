package informer

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// server is an API server that may be away.
type server struct {
	mu       sync.Mutex
	err      error
	requests int
}

func (s *server) set(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

func (s *server) request() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests++
	return s.err
}

// List implements cache.Lister.
func (s *server) List(metav1.ListOptions) (runtime.Object, error) {
	return &corev1.NodeList{}, s.request()
}

// Watch implements cache.Watcher.
func (s *server) Watch(metav1.ListOptions) (watch.Interface, error) {
	if err := s.request(); err != nil {
		return nil, err
	}
	return watch.NewEmptyWatch(), nil
}

func informerOf(s *server, shared *outage) *patient {
	begins := lister{s, cache.ToListerWatcherWithContext(s)}
	return &patient{lister: begins, requests: begins, shared: shared}
}

// After an outage of ten minutes, each informer would make its next attempt within a minute. The first one that is answered makes the others
// try at once.
func TestOneAnswerEndsTheOutageForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, shared := &server{err: errors.New("connection refused")}, newOutage()
		var returned sync.WaitGroup
		var mu sync.Mutex
		var at []time.Time
		for range 10 {
			p := informerOf(s, shared)
			if _, err := p.ListWithContext(t.Context(), metav1.ListOptions{}); err == nil {
				t.Error("the first failure is not returned")
			}
			returned.Go(func() {
				if _, err := p.WatchWithContext(t.Context(), metav1.ListOptions{}); err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				at = append(at, time.Now())
			})
		}
		time.Sleep(10 * time.Minute)
		if s.requests > 10*40 {
			t.Errorf("%d requests in ten minutes of ten informers", s.requests)
		}
		s.set(nil)
		returned.Wait()
		for _, one := range at {
			if !one.Equal(at[0]) {
				t.Errorf("one informer is back %s after the first", one.Sub(at[0]))
			}
		}
	})
}

// What the API server answers is returned, also if it is an error, and the end of the context ends the wait.
func TestAnswersAreReturned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{err: apierrors.NewServiceUnavailable("it starts")}
		p := informerOf(s, newOutage())
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for range 2 { // the first is returned, the second waits
			if _, err := p.ListWithContext(ctx, metav1.ListOptions{}); !apierrors.IsServiceUnavailable(err) {
				t.Errorf("unavailable: %v", err)
			}
		}
		if ctx.Err() == nil {
			t.Error("a request to a server that is away did not wait for the context's end")
		}
		s.set(apierrors.NewResourceExpired("too old"))
		for range 2 {
			if _, err := p.WatchWithContext(t.Context(), metav1.ListOptions{}); !apierrors.IsResourceExpired(err) {
				t.Errorf("expired: %v", err)
			}
		}
	})
}
