package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"sync"
	"time"

	"weft.dev/weft/internal/agent/cniconf"

	"github.com/spf13/cobra"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/trace"

	"weft.dev/weft/internal/agent"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/command"
	"weft.dev/weft/internal/flannel/netconf"
	"weft.dev/weft/internal/tracing"
)

// collectAt is the heap growth, in percent, after which the garbage collector of agents and controllers runs; Go's default is 100. An agent's
// heap is small and changes little, so this saves some 6 MB on every node, and costs no CPU time that the benchmark of ADD shows. A
// controller's heap grows with the cluster: with 10,000 pods in VPCs this saves 33 MB of 220 MB at the start, which takes about a
// tenth longer.
const collectAt = 50

// An agent or flanneld that starts keeps nearly all that it reads, so the collector would scan a growing heap again and again. With collectFirst it
// first runs at 40 MB, and with collectAtStart again when the heap is five times as large, until startsWithin has passed.
const (
	collectFirst   = 1000
	collectAtStart = 400
	startsWithin   = 10 * time.Second
)

// collectLittle makes the garbage collector run rarely while the process starts.
func collectLittle() {
	var mu sync.Mutex
	started := false
	set := func(percent int, last bool) {
		mu.Lock()
		defer mu.Unlock()
		if !started {
			debug.SetGCPercent(percent)
			started = last
		}
	}
	set(collectFirst, false)
	runtime.AddCleanup(new([16]byte), func(percent int) { set(percent, false) }, collectAtStart) // runs after the first collection
	time.AfterFunc(startsWithin, func() {
		set(collectAt, true)
		debug.FreeOSMemory()
	})
}

func agentCommand(common *commonFlags, environment Environment) *cobra.Command {
	opts := agent.Options{Version: environment.Version}
	var dry dryRunFlags
	var sampling float64
	var serveFlannel bool
	var closed closedFlags
	cmd := &cobra.Command{
		Use:   "agent [-- flags of flanneld]",
		Short: "Run the network of this node",
		Long: "Runs the network of this node: keeps Open vSwitch, nftables and the kernel in step with the cluster's\n" +
			"objects, and serves the container runtime. It can be stopped and started at any time: pods keep their network meanwhile.",
		Example: "  # On a node, with the cluster's kubeconfig\n" +
			"  weft agent --node-name worker-1 --kubeconfig /etc/kubernetes/admin.conf\n\n" +
			"  # In the userspace datapath, also if the kernel has openvswitch.ko\n" +
			"  weft agent --node-name worker-1 --datapath netdev\n\n" +
			"  # Before an upgrade: what would the new release change on this node?\n" +
			"  weft agent --node-name worker-1 --kubeconfig /etc/kubernetes/admin.conf --dry-run\n\n" +
			"  # On a node of a flannel network, by the interface eth1\n" +
			"  weft agent --node-name worker-1 --flannel -- --iface=eth1 --ip-masq",
		Args: afterDash,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := dry.check(cmd); err != nil {
				return err
			}
			var err error
			if opts.Flannel, err = flannelFlags(serveFlannel, args, environment, cmd.ErrOrStderr()); err != nil {
				return err
			}
			if opts.Log, opts.LogLevel, err = common.logger(cmd.ErrOrStderr()); err != nil {
				return err
			}
			if opts.Config, err = common.config(); err != nil {
				return err
			}
			if err := closed.parse(&opts); err != nil {
				return err
			}
			if dry.run {
				return dry.print(cmd, opts)
			}
			stop := func() {}
			if sampling != 0 {
				if opts.Traces, stop, err = traces(cmd.Context(), sampling, &opts, environment.Getenv); err != nil {
					return err
				}
			}
			defer stop()
			if environment.Getenv("GOGC") == "" {
				collectLittle()
			}
			return agent.Run(cmd.Context(), opts)
		},
	}
	dry.register(cmd)
	flags := cmd.Flags()
	flags.StringVar(&opts.Node, "node-name", environment.Node, "name of this node's Node object (default: $NODE_NAME)")
	flags.StringVar(&opts.Paths.OVSRunDir, "ovs-run-dir", agent.DefaultOVSRunDir, "directory with Open vSwitch's sockets")
	flags.StringVar(&opts.Paths.StateDir, "state-dir", agent.DefaultStateDir, "directory of the attachment records")
	flags.StringVar(&opts.Paths.RunDir, "run-dir", agent.DefaultRunDir, "directory of the agent's sockets")
	flags.StringVar(&opts.Paths.RuntimeCache, "runtime-cache-dir", cni.DefaultCache,
		"directory where the container runtime keeps the results of ADD, for attachment records that cannot be read")
	flags.StringVar(&opts.Paths.CNIConfDir, "cni-conf-dir", agent.DefaultCNIConfDir, "directory of the runtime's network configurations")
	flags.IntVar(&opts.SparePorts, "spare-ports", agent.DefaultSparePorts, "number of pre-plugged ports for pods, whose interfaces are then of type macvlan; more makes pod start faster and costs memory; 0: none, and pods get veth interfaces")
	flags.StringVar(&opts.Paths.ResolvConf, "resolv-conf", agent.DefaultResolvConf, "file with the name servers that resolve names in EgressNetworkPolicies; read again before each query")
	flags.StringVar(&opts.Datapath, "datapath", agent.DatapathAuto, "the switch's datapath: auto, system (kernel) or netdev (userspace)")
	flags.BoolVar(&opts.Neutron, "neutron", false, "serve pods on Neutron networks (Networks of stackube.kubernetes.io); needs br-int and its program on the node, and the controller's --neutron-config")
	flags.StringVar(&opts.HealthAddress, "health-address", agent.DefaultHealthAddress, "host:port of /healthz, /readyz and /metrics; empty: none")
	flags.StringVar(&opts.MetricsAddress, "metrics-address", "", "host:port of /metrics alone, besides --health-address; every client that reaches it can read it; empty: none")
	flags.Float64Var(&sampling, "trace-sampling", 0, "part of the runtime's requests that are traced, 0 to 1; traces go by OTLP over HTTP to $OTEL_EXPORTER_OTLP_ENDPOINT")
	flags.BoolVar(&opts.Profiling, "profiling", false, "serve /debug/pprof at the health address, to every client that can connect")
	closed.register(cmd)
	flags.StringVar(&opts.OVNNamespace, "ovn-namespace", "", "with --vpc, namespace of the ConfigMap weft-ovn: the node joins Weft's OVN; empty: ovn-controller is configured by others")
	flags.BoolVar(&opts.VPC, "vpc", false, "serve VPCs; ovn-controller runs on the node")
	flags.BoolVar(&serveFlannel, "flannel", false, "serve the flannel network once ConfigMap kube-flannel-cfg is there; flags of flanneld follow after --")
	flags.StringVar(&opts.Paths.ProcSys, "proc-sys", "/proc/sys", "where the sysctls can be written; in a container /proc/sys is read-only")
	return cmd
}

// traces returns the tracer provider, and a function that sends the last spans and stops it.
func traces(ctx context.Context, sampling float64, opts *agent.Options, getenv func(string) string) (trace.TracerProvider, func(), error) {
	provider, err := tracing.New(tracing.Config{
		Sampling: sampling, Service: "weft-agent", Version: opts.Version, Node: opts.Node, Getenv: getenv, Log: opts.Log,
	})
	if err != nil {
		return nil, nil, fmt.Errorf("--trace-sampling: %w", err)
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { opts.Log.Debug("spans were not sent", "error", err) }))
	return provider, func() {
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), tracesGrace)
		defer cancel()
		if err := provider.Shutdown(ending); err != nil {
			opts.Log.Debug("the last spans were not sent", "error", err)
		}
	}, nil
}

// tracesGrace is how long an agent that ends waits for its spans to be sent.
const tracesGrace = 2 * time.Second

func installPluginCommand() *cobra.Command {
	var from, to string
	cmd := &cobra.Command{
		Use:     "install-plugin",
		Short:   "Put the CNI plugin where the container runtime looks for it",
		Long:    "Copies the CNI plugin atomically: a runtime never starts half a file.",
		Example: "  weft install-plugin --from /weft-cni --to /opt/cni/bin/weft",
		Args:    cobra.NoArgs,
		RunE:    func(*cobra.Command, []string) error { return cniconf.InstallPlugin(from, to) },
	}
	cmd.Flags().StringVar(&from, "from", "/weft-cni", "the plugin's executable")
	cmd.Flags().StringVar(&to, "to", "/opt/cni/bin/weft", "where to put it")
	return cmd
}

// afterDash accepts arguments after -- only.
func afterDash(cmd *cobra.Command, args []string) error {
	if before := cmd.ArgsLenAtDash(); before > 0 || before < 0 && len(args) > 0 {
		return command.Refuse(nil, fmt.Errorf("argument %q: flags of flanneld follow after --", args[0]))
	}
	return nil
}

// flannelFlags returns flanneld's flags for an agent that serves flannel, else nil. Without arguments, the flags are --ip-masq.
func flannelFlags(serve bool, args []string, environment Environment, usage io.Writer) (*netconf.Flags, error) {
	switch {
	case !serve && len(args) > 0:
		return nil, command.Refuse(nil, errors.New("flags after -- are flanneld's: give --flannel before them"))
	case !serve:
		return nil, nil //nolint:nilnil // no flags is how the agent is told not to serve flannel
	case len(args) == 0:
		args = []string{"--ip-masq"}
	}
	getenv := environment.Getenv
	if getenv == nil {
		getenv = func(string) string { return "" }
	}
	flags, err := netconf.ParseFlags(append([]string{"--kube-subnet-mgr"}, args...), getenv, usage)
	if err != nil {
		return nil, command.Refuse(nil, fmt.Errorf("flags of flanneld after --: %w", err))
	}
	if !flags.Kube.Enabled {
		return nil, command.Refuse(nil, errors.New("flags of flanneld after --: the agent keeps leases in Kubernetes; for etcd run `weft flanneld`"))
	}
	return flags, nil
}
