package agent

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"weft.dev/weft/internal/agent/engines"

	"k8s.io/client-go/rest"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/health"
	"weft.dev/weft/internal/metrics"
	"weft.dev/weft/internal/network"
	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/overlay"
	"weft.dev/weft/internal/overlay/pipeline"
	"weft.dev/weft/internal/timing"
)

// serveHealth answers probes and scrapes until ctx ends.
func (a *agent) serveHealth(ctx context.Context) error {
	return health.Serve(ctx, a.opts.HealthAddress, a.health.Handler())
}

// serveMetrics answers only scrapes, at a separate address, until ctx ends.
func (a *agent) serveMetrics(ctx context.Context) error {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", a.metrics.Handler())
	return health.Serve(ctx, a.opts.MetricsAddress, mux)
}

// watch adds the network and its engines to the health checks and the metrics.
func (a *agent) watch(network *overlay.Network, e *engines.Engines) {
	if len(a.opts.Networks) == 0 {
		a.watchNode(e, network.Ready)
	}
	a.metrics.Watch(func() metrics.State {
		used, all := network.Addresses()
		own := metrics.Network{
			Ready: network.Ready() == nil, AddressesInUse: used, Addresses: all, Flows: e.Switch.Flows().Programmed(tableOf), Attachments: noAttachments(),
		}
		state := metrics.State{Engines: e.States(), Networks: map[string]metrics.Network{overlay.NetworkName: own}}
		for _, record := range a.store.List() {
			kind := nameOf(&record)
			if _, known := state.Networks[kind]; !known {
				state.Networks[kind] = metrics.Network{Attachments: noAttachments()}
			}
			state.Networks[kind].Attachments[string(record.State)]++
		}
		return state
	})
}

// watchNode adds the node's engines to the health checks, and the network to which ready belongs.
func (a *agent) watchNode(e *engines.Engines, ready func() error) {
	a.health.Add(
		health.Check{Name: "network", Run: ready},
		health.Check{Name: "engines", Run: e.Failures},
		health.Check{Name: "node", Run: a.kept},
	)
	a.health.Warn(
		health.Check{Name: "host-firewall", Run: e.Kernel.Firewall.State},
		health.Check{Name: "api-server", Run: a.kube.state},
	)
}

// noAttachments returns a count of zero for each state.
func noAttachments() map[string]int {
	return map[string]int{string(attach.Planned): 0, string(attach.Attached): 0, string(attach.Closing): 0}
}

// tableOf returns the name of a flow's table; for groups, "groups".
func tableOf(key openflow.Key) string {
	if key.Group != 0 {
		return "groups"
	}
	if name := pipeline.TableName(key.Table); name != "" {
		return name
	}
	return strconv.Itoa(int(key.Table))
}

// observe starts the measurement of a request of the container runtime. The returned function ends it.
func (a *agent) observe(ctx context.Context, req *cni.Request, origin cni.Origin) (context.Context, func(error)) {
	begin := time.Now()
	command := string(req.Command)
	ctx, traced := a.traceRequest(ctx, req, origin)
	steps := &requestSteps{}
	ctx = timing.With(ctx, steps.took)
	network := a.networkOf(req)
	return ctx, func(err error) {
		var code cni.Code
		if failure := cni.AsError(err); failure != nil {
			code = failure.Code
		}
		if network == metrics.NoNetwork {
			network = a.networkOf(req)
		}
		for _, s := range steps.all() {
			a.metrics.Step(network, command, s.name, s.took)
		}
		a.metrics.Request(network, command, uint(code), time.Since(begin))
		traced(err)
		a.events.Request(req, err)
	}
}

// networkOf returns the network of a request's attachment, from its record.
func (a *agent) networkOf(req *cni.Request) string {
	if a.store == nil {
		return metrics.NoNetwork
	}
	record, err := a.store.Get(attach.Key{ContainerID: req.ContainerID, IfName: req.IfName})
	if err != nil {
		return metrics.NoNetwork
	}
	return nameOf(&record)
}

// nameOf returns the value of the label network for a record: the kind of its network. Some kinds have one network for each object.
func nameOf(record *attach.Record) string {
	return cmp.Or(network.KindOf(record.Network), metrics.NoNetwork)
}

// requestSteps are the steps of a request. They are counted at its end, because its network is not always known at the beginning.
type requestSteps struct {
	mu    sync.Mutex
	steps []requestStep
}

type requestStep struct {
	name string
	took time.Duration
}

func (r *requestSteps) took(name string, took time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.steps = append(r.steps, requestStep{name, took})
}

func (r *requestSteps) all() []requestStep {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.steps)
}

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
