package serve

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	api "weft.dev/weft/api/kubestack"
	"weft.dev/weft/internal/neutron/plug"
	"weft.dev/weft/internal/testwait"
)

// noPlugin connects no pods.
type noPlugin struct{}

func (noPlugin) Setup(context.Context, plug.Pod) (bool, error)     { return true, nil }
func (noPlugin) Teardown(context.Context, string) error            { return nil }
func (noPlugin) Close()                                            {}
func (noPlugin) open(context.Context, string) (plug.Plugin, error) { return noPlugin{}, nil }

// The password in kubestack.conf, and the token that Keystone gives for it, are in no log and no answer.
const password, token = "weft-test-password", "gAAAA-weft-test-token"

func holdsSecret(text string) bool {
	return strings.Contains(text, password) || strings.Contains(text, token)
}

// keystone is a Keystone and a Neutron without objects. While away is set, connections end without an answer.
type keystone struct {
	away atomic.Bool
	// refuses makes Keystone refuse every user and token.
	refuses atomic.Bool
	url     string
}

func newKeystone(t *testing.T) *keystone {
	t.Helper()
	k := &keystone{}
	server := httptest.NewServer(k)
	t.Cleanup(server.Close)
	k.url = server.URL
	return k
}

// ServeHTTP implements http.Handler.
func (k *keystone) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case k.away.Load():
		panic(http.ErrAbortHandler)
	case k.refuses.Load():
		http.Error(w, "refused", http.StatusUnauthorized)
	case strings.HasPrefix(r.URL.Path, "/net"):
		_, _ = fmt.Fprintf(w, `{"versions":[{"id":"v2.0","status":"CURRENT","links":[{"rel":"self","href":"%s/net/v2.0/"}]}]}`, k.url)
	case r.Method == http.MethodPost:
		w.Header().Set("X-Subject-Token", token)
		w.WriteHeader(http.StatusCreated)
		_, _ = fmt.Fprintf(w, `{"token":{"expires_at":"2099-01-01T00:00:00.000000Z","project":{"id":"p"},"catalog":[`+
			`{"type":"identity","endpoints":[{"interface":"public","region":"R","url":"%[1]s/v3"}]},`+
			`{"type":"network","endpoints":[{"interface":"public","region":"R","url":"%[1]s/net"}]}]}}`, k.url)
	case strings.HasSuffix(r.URL.Path, "/projects"):
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprint(w, `{"links":{},"projects":[{"id":"p","name":"red"}]}`)
	default:
		_, _ = fmt.Fprintf(w, `{"versions":{"values":[{"id":"v3.14","status":"stable","links":[{"rel":"self","href":"%s/v3/"}]}]}}`, k.url)
	}
}

// said is the log of a program.
type said struct{ testwait.Log }

// start runs the program with flags until the test ends, and returns its log.
func start(t *testing.T, k *keystone, flags ...string) *said {
	t.Helper()
	dir := t.TempDir()
	config := filepath.Join(dir, "kubestack.conf")
	text := "[Global]\nauth-url = " + k.url + "/v3\nusername = admin\npassword = " + password + "\ntenant-name = admin\nregion = R\n[Plugin]\nplugin-name = ovs\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd, o := describe(Program)
	if err := cmd.ParseFlags(append(flags, "--config="+config, "--records="+filepath.Join(dir, "records"))); err != nil {
		t.Fatal(err)
	}
	o.own = plug.Registry{"ovs": noPlugin{}.open}
	log := &said{}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- o.run(ctx, slog.New(slog.NewTextHandler(log, nil))) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Log(log)
		}
	})
	return log
}

// dial connects to the program, and waits until it listens.
func dial(t *testing.T, target string, options ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(target, append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.WaitForReady(true)),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1, MaxDelay: 20 * time.Millisecond}}),
	}, options...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// The program serves while Keystone is away: Active answers, every other call says what is not reachable, and so does the log. Once Keystone
// answers, calls succeed without a restart.
func TestKeystoneAway(t *testing.T) {
	k := newKeystone(t)
	k.away.Store(true)
	path := filepath.Join(t.TempDir(), "provider.sock")
	log := start(t, k, "--listen=unix:"+path, fmt.Sprintf("--allow-uid=%d", os.Getuid()))
	conn := dial(t, "unix://"+path)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	networks, balancers, pods := api.NewNetworksClient(conn), api.NewLoadBalancersClient(conn), api.NewPodsClient(conn)
	if got, err := networks.Active(ctx, &api.ActiveRequest{}); err != nil || !got.GetResult() {
		t.Errorf("Active: %v, %v", got, err)
	}
	network := &api.Network{Name: "n", Uid: "n", TenantID: "red", Subnets: []*api.Subnet{{Uid: "s", Cidr: "10.0.0.0/24"}}}
	for name, call := range map[string]func() (interface{ GetError() string }, error){
		"CheckTenantID": func() (interface{ GetError() string }, error) {
			return networks.CheckTenantID(ctx, &api.CheckTenantIDRequest{TenantID: "red"})
		},
		"GetNetwork": func() (interface{ GetError() string }, error) {
			return networks.GetNetwork(ctx, &api.GetNetworkRequest{Name: "n"})
		},
		"CreateNetwork": func() (interface{ GetError() string }, error) {
			return networks.CreateNetwork(ctx, &api.CreateNetworkRequest{Network: network})
		},
		"UpdateNetwork": func() (interface{ GetError() string }, error) {
			return networks.UpdateNetwork(ctx, &api.UpdateNetworkRequest{Network: network})
		},
		"DeleteNetwork": func() (interface{ GetError() string }, error) {
			return networks.DeleteNetwork(ctx, &api.DeleteNetworkRequest{NetworkName: "n"})
		},
		"GetLoadBalancer": func() (interface{ GetError() string }, error) {
			return balancers.GetLoadBalancer(ctx, &api.GetLoadBalancerRequest{Name: "n"})
		},
		"CreateLoadBalancer": func() (interface{ GetError() string }, error) {
			return balancers.CreateLoadBalancer(ctx, &api.CreateLoadBalancerRequest{Affinity: "None", LoadBalancer: &api.LoadBalancer{
				Name: "n", TenantID: "red", Subnets: network.GetSubnets(),
			}})
		},
		"UpdateLoadBalancer": func() (interface{ GetError() string }, error) {
			return balancers.UpdateLoadBalancer(ctx, &api.UpdateLoadBalancerRequest{Name: "n"})
		},
		"DeleteLoadBalancer": func() (interface{ GetError() string }, error) {
			return balancers.DeleteLoadBalancer(ctx, &api.DeleteLoadBalancerRequest{Name: "n"})
		},
		"SetupPod": func() (interface{ GetError() string }, error) {
			return pods.SetupPod(ctx, &api.SetupPodRequest{PodName: "web", Namespace: "red", Network: network})
		},
		"TeardownPod": func() (interface{ GetError() string }, error) {
			return pods.TeardownPod(ctx, &api.TeardownPodRequest{PodName: "web", Namespace: "red", Network: network})
		},
		"PodStatus": func() (interface{ GetError() string }, error) {
			return pods.PodStatus(ctx, &api.PodStatusRequest{PodName: "web", Namespace: "red", Network: network})
		},
	} {
		got, err := call()
		if err != nil || !strings.Contains(got.GetError(), "authenticate at Keystone, "+k.url) || holdsSecret(got.GetError()) {
			t.Errorf("%s: %q, %v", name, got.GetError(), err)
		}
	}
	k.away.Store(false)
	testwait.Until(t, "the provider reaches Keystone", func() bool {
		got, err := networks.CheckTenantID(ctx, &api.CheckTenantIDRequest{TenantID: "red"})
		if err != nil || got.GetError() != "" && !strings.Contains(got.GetError(), "authenticate at Keystone") {
			t.Fatal(got.GetError(), err)
		}
		return got.GetResult()
	})
	for name, fails := range map[string]*atomic.Bool{"away": &k.away, "refusing the token": &k.refuses} {
		fails.Store(true)
		got, err := networks.CheckTenantID(ctx, &api.CheckTenantIDRequest{TenantID: "red"})
		if err != nil || got.GetError() == "" || holdsSecret(got.GetError()) {
			t.Errorf("Keystone %s: %q, %v", name, got.GetError(), err)
		}
		fails.Store(false)
	}
	if holdsSecret(log.String()) {
		t.Error("a password or a token is in the log")
	}
	for _, want := range []string{"OpenStack is not reachable", k.url, "authenticated at OpenStack"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log does not say %q", want)
		}
	}
}
