package informer

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// Delays between attempts to reach an API server that does not answer, before jitter, which doubles them at most: those of client-go.
const (
	firstDelay = 800 * time.Millisecond
	lastDelay  = 30 * time.Second
)

// outage is shared by informers of one API server. client-go's informers wait for up to a minute each after an API server has been away for
// some time, and changes of objects wait as long. Here, the first request that is answered ends the wait of all informers.
type outage struct {
	mu   sync.Mutex
	over chan struct{}
}

func newOutage() *outage { return &outage{over: make(chan struct{})} }

// end ends the waits of all informers.
func (o *outage) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	close(o.over)
	o.over = make(chan struct{})
}

// ended is closed when the next request is answered.
func (o *outage) ended() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.over
}

// patient repeats requests while the API server does not answer. The first failure is returned, so that client-go reports it.
type patient struct {
	lister
	requests cache.ListerWatcherWithContext
	shared   *outage
	// failed says that the last request failed. client-go makes an informer's requests one after the other.
	failed bool
}

// ListWithContext implements cache.ListerWatcherWithContext.
func (p *patient) ListWithContext(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	return repeat(ctx, p, func() (runtime.Object, error) { return p.requests.ListWithContext(ctx, options) })
}

// WatchWithContext implements cache.ListerWatcherWithContext.
func (p *patient) WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	return repeat(ctx, p, func() (watch.Interface, error) { return p.requests.WatchWithContext(ctx, options) })
}

func repeat[T any](ctx context.Context, p *patient, request func() (T, error)) (T, error) {
	for delay := firstDelay; ; delay = min(2*delay, lastDelay) {
		ended := p.shared.ended() // what is answered from now on ends the wait below
		answer, err := request()
		if err == nil || !unanswered(err) {
			p.failed = false
			p.shared.end()
			return answer, err
		}
		if ctx.Err() != nil {
			return answer, err
		}
		if !p.failed {
			p.failed = true
			return answer, err
		}
		timer := time.NewTimer(wait.Jitter(delay, 1))
		select {
		case <-ctx.Done():
		case <-ended:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// unanswered reports whether a request failed because the API server is away, starts, or stops. Other errors are its answers.
func unanswered(err error) bool {
	var answer apierrors.APIStatus
	return !errors.As(err, &answer) || answer.Status().Code >= http.StatusInternalServerError
}
