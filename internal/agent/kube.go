package agent

import (
	"errors"
	"io"
	"net/http"
	"sync"

	"k8s.io/client-go/rest"

	"weft.dev/weft/internal/metrics"
)

// errAway is reported while the API server is unreachable.
var errAway = errors.New("no watch of the API server is open: changes of objects wait until it is back; existing pods are unaffected")

// kube measures the requests to the API server and the open watches.
type kube struct {
	metrics *metrics.Agent

	mu sync.Mutex
	// open counts the open watches. ever says that there has been one.
	open int
	ever bool
}

// requestRate and requestBurst limit an agent's requests to the API server for each kind of object: the kubelet has the same limits.
// client-go's default of 5 requests a second would delay the reports of a node on which much changes.
const (
	requestRate  = 50
	requestBurst = 100
)

// wrap returns the configuration of a client whose requests are limited and measured.
func (k *kube) wrap(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	if config.QPS == 0 {
		config.QPS, config.Burst = requestRate, requestBurst
	}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return &kubeTransport{kube: k, next: next} })
	return config
}

// state returns nil while watches are open. Without them, the node continues with the objects it has.
func (k *kube) state() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.open == 0 && k.ever {
		return errAway
	}
	return nil
}

func (k *kube) watches(change int) {
	k.mu.Lock()
	k.open += change
	k.ever = k.ever || change > 0
	k.mu.Unlock()
	k.metrics.KubeWatches(change)
}

// kubeTransport is a RoundTripper that counts requests and open watches.
type kubeTransport struct {
	kube *kube
	next http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (t *kubeTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	answer, err := t.next.RoundTrip(request)
	if err != nil {
		t.kube.metrics.KubeRequest(request.Method, 0)
		return answer, err
	}
	t.kube.metrics.KubeRequest(request.Method, answer.StatusCode)
	if answer.StatusCode == http.StatusOK && request.URL.Query().Get("watch") != "" {
		t.kube.watches(1)
		answer.Body = &watchBody{ReadCloser: answer.Body, closed: sync.OnceFunc(func() { t.kube.watches(-1) })}
	}
	return answer, nil
}

// WrappedRoundTripper lets client-go find the transport below.
func (t *kubeTransport) WrappedRoundTripper() http.RoundTripper { return t.next }

// watchBody is the response body of a watch, which stays open.
type watchBody struct {
	io.ReadCloser
	closed func()
}

// Read implements io.Reader. A watch that ends counts as closed, even before Close is called.
func (b *watchBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.closed()
	}
	return n, err
}

// Close implements io.Closer.
func (b *watchBody) Close() error {
	b.closed()
	return b.ReadCloser.Close()
}
