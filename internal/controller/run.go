// Package controller is the controller program, with a part for each network (parts). It is wiring: what a part reads, writes and decides
// is in the network's own package cluster.
//
// One of several replicas leads at a time, elected by a lease. In a cluster in steady state nothing is written.
//
// The program needs the API server rights that its parts declare (cluster.Part.Objects; a test compares them with
// deploy/chart/templates/controller-rbac.yaml, and neutron-rbac.yaml), and in addition:
//
//	events (events.k8s.io)                  create, patch       in "default" for cluster-scoped objects, otherwise in their namespaces
//	leases, events in its own namespace     leader election
package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	shared "weft.dev/weft/internal/cluster"
	flannelcluster "weft.dev/weft/internal/flannel/cluster"
	"weft.dev/weft/internal/health"
	"weft.dev/weft/internal/informer"
	"weft.dev/weft/internal/metrics"
	neutroncluster "weft.dev/weft/internal/neutron/cluster"
	overlaycluster "weft.dev/weft/internal/overlay/cluster"
	"weft.dev/weft/internal/ovn"
	vpccluster "weft.dev/weft/internal/vpc/cluster"
)

// Defaults of Options.
const (
	// DefaultLeaseNamespace is the namespace of the lease.
	DefaultLeaseNamespace = "weft"
	// DefaultLeaseName is the name of the lease.
	DefaultLeaseName = "weft-controller"
	// DefaultHealthAddress is where the program serves health and metrics; the manifests set another one.
	DefaultHealthAddress = "127.0.0.1:9470"
)

// Options configure a controller. Only Config is required.
type Options struct {
	// Config is the configuration of the API server client.
	Config *rest.Config
	// LeaseNamespace is the namespace of the lease that elects the leader. Empty: DefaultLeaseNamespace.
	LeaseNamespace string
	// LeaseName is the name of that lease. Empty: DefaultLeaseName.
	LeaseName string
	// LeaseDuration is how long the other replicas wait for a leader that does not renew the lease. Zero: 15 s. A leader that cannot renew
	// gives up after two thirds of it. It renews about every seventh part of it, as Kubernetes' own controllers do.
	LeaseDuration time.Duration
	// HealthAddress is where /healthz, /readyz, /metrics, and /v1/diff for weft diff are served, as host:port. Empty: nowhere.
	HealthAddress string
	// MetricsAddress is an additional address that serves only /metrics, as host:port. Empty: none.
	MetricsAddress string
	// Version is the program's release, for weft_build_info.
	Version string
	// Resync is the interval at which all objects are processed again without a change. Zero: 10 min, 10 % more or less.
	Resync time.Duration
	// Defaults creates a ClusterNetwork if no network is configured and no node has a subnet.
	Defaults bool
	// Neutron configures OpenStack's networks. Nil: none.
	Neutron *neutroncluster.Options
	// Random chooses among free VNIDs. Nil: seeded by the system.
	Random *rand.Rand
	// Northbound configures the connection to OVN's northbound database. Without endpoints there is no part for VPCs.
	Northbound ovn.Config
	// Loaded is called when the part for VPCs has read all objects and brought them into effect: after the start, and after each resync. It must
	// not block. Nil: not called.
	Loaded   func()
	vpcs     *vpccluster.Options // nil: VPCs are not served
	identity string              // of this replica, in the lease
	// Logger is the logger of the controller and of controller-runtime, for which it is set process-wide. Nil: slog.Default().
	Logger *slog.Logger
}

func (o Options) withDefaults() (Options, error) {
	if o.Config == nil {
		return o, errors.New("controller: no configuration of the API server given")
	}
	if o.LeaseNamespace == "" {
		o.LeaseNamespace = DefaultLeaseNamespace
	}
	if o.LeaseName == "" {
		o.LeaseName = DefaultLeaseName
	}
	if o.LeaseDuration == 0 {
		o.LeaseDuration = 15 * time.Second
	}
	if o.Resync == 0 {
		o.Resync = 10 * time.Minute
	}
	if o.Random == nil {
		o.Random = rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64())) //nolint:gosec // VNIDs are no secrets
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	return o, nil
}

// Run leads, or waits to lead, until the context ends, and then returns nil. It returns an error if the API server cannot be used, or if
// leadership is lost: the program must then exit and be restarted.
func Run(ctx context.Context, options Options) error {
	options, err := options.withDefaults()
	if err != nil {
		return err
	}
	log.SetLogger(logr.FromSlogHandler(options.Logger.Handler()))
	counters := metrics.NewController(options.Version)
	ready := shared.NewReadiness(counters)
	options.Config = ready.Wrap(options.Config)
	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("name this replica: %w", err)
	}
	options.identity = host + "_" + string(uuid.NewUUID())
	closeVPCs, err := openVPCs(ctx, &options)
	if err != nil {
		return err
	}
	defer closeVPCs()
	mgr, err := newManager(options)
	if err != nil {
		return err
	}
	if err := ready.Follow(mgr); err != nil {
		return fmt.Errorf("follow the election: %w", err)
	}
	tools := shared.NewTools(mgr, ready, options.Logger, options.Random)
	tools.Defaults = options.Defaults
	if err := shared.SetUp(parts(options), tools); err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		return health.Serve(ctx, options.HealthAddress, withDiff(ready.Server().Handler(), &options))
	})
	group.Go(func() error {
		mux := http.NewServeMux()
		mux.Handle("GET /metrics", counters.Handler())
		return health.Serve(ctx, options.MetricsAddress, mux)
	})
	group.Go(func() error {
		if err := mgr.Start(ctx); err != nil {
			return fmt.Errorf("controller: %w", err)
		}
		return nil
	})
	return group.Wait()
}

// parts are the networks' parts of the controller. To add a network, add one line.
func parts(options Options) []shared.Part {
	all := []shared.Part{
		overlaycluster.Part(),
		flannelcluster.Part(),
	}
	if options.Neutron != nil {
		all = append(all, neutronPart(*options.Neutron))
	}
	if options.vpcs != nil {
		all = append(all, vpccluster.Part(*options.vpcs))
	}
	return all
}

// Rates of requests to the API server, which also limits them itself (priority and fairness). With client-go's default, 5 a second, a
// change of the mode would take minutes in a cluster of a thousand namespaces.
const (
	requestRate  = 200
	requestBurst = 400
)

func newManager(options Options) (manager.Manager, error) {
	if options.Config.QPS == 0 {
		options.Config = rest.CopyConfig(options.Config)
		options.Config.QPS, options.Config.Burst = requestRate, requestBurst
	}
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), shared.AddToScheme(parts(options), scheme)); err != nil {
		return nil, fmt.Errorf("register the kinds of objects: %w", err)
	}
	cached, err := shared.Cached(parts(options), scheme)
	if err == nil {
		err = shared.OnlyServed(options.Config, cached)
	}
	if err != nil {
		return nil, err
	}
	renew, retry, always := options.LeaseDuration*2/3, options.LeaseDuration*2/15, true
	lock, err := newLock(options, renew)
	if err != nil {
		return nil, err
	}
	mgr, err := manager.New(options.Config, manager.Options{
		Scheme: scheme, Logger: logr.FromSlogHandler(options.Logger.Handler()),
		LeaderElection: true, LeaderElectionResourceLockInterface: lock,
		LeaderElectionReleaseOnCancel: true, // nothing is written after Run returns
		LeaseDuration:                 &options.LeaseDuration, RenewDeadline: &renew, RetryPeriod: &retry,
		HealthProbeBindAddress: "0", // none: package health serves the probes
		Metrics:                metricsserver.Options{BindAddress: "0"},
		Controller:             config.Controller{SkipNameValidation: &always},
		Cache: cache.Options{
			SyncPeriod:       &options.Resync,
			DefaultTransform: cache.TransformStripManagedFields(),
			ByObject:         cached,
			NewInformer:      informer.Latest(),
		},
	})
	if err != nil {
		return nil, fmt.Errorf("connect to the API server: %w", err)
	}
	return mgr, nil
}

// newLock returns the lease for leader election. Parts that write to systems other than the API server use this replica's identity in it.
func newLock(options Options, renew time.Duration) (resourcelock.Interface, error) {
	// AddUserAgent changes what it gets, and the manager's watches must not end with this timeout.
	config := rest.AddUserAgent(rest.CopyConfig(options.Config), "leader-election")
	config.Timeout = max(renew/2, time.Second) // one request that hangs must not lose the leadership
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("connect to the API server for the lease: %w", err)
	}
	lock, err := resourcelock.New(resourcelock.LeasesResourceLock, options.LeaseNamespace, options.LeaseName, clients.CoreV1(), clients.CoordinationV1(),
		resourcelock.ResourceLockConfig{Identity: options.identity})
	if err != nil {
		return nil, fmt.Errorf("use lease %s/%s: %w", options.LeaseNamespace, options.LeaseName, err)
	}
	return lock, nil
}
