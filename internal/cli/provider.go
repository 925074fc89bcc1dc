package cli

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"weft.dev/weft/internal/neutron/cloud"
	"weft.dev/weft/internal/neutron/conf"
	"weft.dev/weft/internal/neutron/openstack"
	"weft.dev/weft/internal/neutron/plug"
	"weft.dev/weft/internal/neutron/plug/ovs"
	"weft.dev/weft/internal/neutron/provider"
)

// providerOptions are the flags of `weft provider`.
type providerOptions struct {
	config   string
	listen   provider.Listen
	uids     []uint
	host     string
	cluster  string
	records  string
	ovsdb    string
	runtimes provider.Runtimes
}

// Defaults of `weft provider`.
const (
	providerConfig  = "/etc/kubestack.conf"
	providerListen  = "127.0.0.1:4237"
	providerRecords = "/var/lib/weft/provider"
	dockerSocket    = "/var/run/docker.sock"
	criSocket       = "/run/containerd/containerd.sock"
)

func providerCommand(common *commonFlags) *cobra.Command {
	opts := &providerOptions{}
	cmd := &cobra.Command{
		Use:   "provider",
		Short: "Serve KubeStack's gRPC interface: OpenStack networks, load balancers and pods on them",
		Long: "Serves the gRPC interface of KubeStack (package types) to its clients. It needs OpenStack and, for pods, Open vSwitch on\n" +
			"this node; it needs neither Kubernetes' API nor the agent.\n\n" +
			"Callers on loopback addresses and unix sockets are checked by their user; other addresses need mutual TLS.",
		Example: "  weft provider --config /etc/kubestack.conf --listen 127.0.0.1:4237",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log, _, err := common.logger(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			return opts.run(cmd.Context(), log)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&opts.config, "config", providerConfig, "path of kubestack.conf")
	flags.StringVar(&opts.listen.Address, "listen", providerListen, "HOST:PORT or unix:PATH to serve at")
	flags.UintSliceVar(&opts.uids, "allow-uid", []uint{0}, "users that may call by loopback and unix sockets")
	flags.StringVar(&opts.listen.CertFile, "tls-cert", "", "path of the server's certificate, PEM; needed for addresses that other machines reach")
	flags.StringVar(&opts.listen.KeyFile, "tls-key", "", "path of the certificate's key")
	flags.StringVar(&opts.listen.ClientCAFile, "client-ca", "", "path of the authority that signs clients' certificates")
	opts.common(flags.StringVar)
	return cmd
}

// common registers the flags of both forms of the command. Both flag packages have a function of add's type.
func (o *providerOptions) common(add func(into *string, name, otherwise, usage string)) {
	add(&o.host, "host", "", "this node's name in Neutron (external_ids:hostname of its Open vSwitch); empty: the host's name")
	add(&o.cluster, "cluster", "provider", "name of this installation; it marks the objects that it creates in OpenStack")
	add(&o.records, "records", providerRecords, "folder of the pods' records")
	add(&o.ovsdb, "ovsdb", "", "Open vSwitch's database, such as unix:/run/openvswitch/db.sock; empty: the usual one")
	add(&o.runtimes.Docker, "docker-socket", dockerSocket, "path of Docker's socket")
	add(&o.runtimes.CRI, "cri-socket", criSocket, "path of the CRI runtime's socket")
}

// plugins returns the plug-ins by name.
func (o *providerOptions) plugins() plug.Registry {
	return plug.Registry{
		"ovs": func(ctx context.Context, bridge string) (plug.Plugin, error) { return ovs.Open(ctx, o.ovsdb, bridge) },
	}
}

func (o *providerOptions) run(ctx context.Context, log *slog.Logger) error {
	text, err := os.ReadFile(o.config)
	if err != nil {
		return fmt.Errorf("read the configuration: %w", err)
	}
	config, notes, err := conf.Parse(string(text))
	if err != nil {
		return err
	}
	for _, note := range notes {
		log.Warn("configuration read differently", "note", note)
	}
	if o.host == "" {
		if o.host, err = os.Hostname(); err != nil {
			return fmt.Errorf("find the host's name: %w", err)
		}
	}
	for _, uid := range o.uids {
		o.listen.UIDs = append(o.listen.UIDs, uint32(uid)) //nolint:gosec // uids have 32 bits
	}
	o.listen.Log = log
	plugin, err := o.plugins().Open(ctx, config.Plugin.Name, config.Plugin.IntegrationBridge)
	if err != nil {
		return err
	}
	defer plugin.Close()
	client, err := openstack.New(ctx, config.Global, openstack.Options{})
	if err != nil {
		return err
	}
	in, secure, err := o.listen.Open()
	if err != nil {
		return err
	}
	var more []grpc.ServerOption
	if secure != nil {
		more = append(more, grpc.Creds(credentials.NewTLS(secure)))
	}
	server := provider.NewServer(log, more...)
	err = provider.Register(server, provider.Options{
		Cloud: cloud.New(client, cloud.Config{
			Cluster: o.cluster, ExternalNetwork: config.Global.ExtNetID, LoadBalancer: config.LoadBalancer,
		}),
		Plugin: plugin, Host: o.host, Records: o.records, Sandboxes: o.runtimes, Log: log,
	})
	if err != nil {
		return errors.Join(err, in.Close())
	}
	defer context.AfterFunc(ctx, server.GracefulStop)()
	log.Info("provider serves", "address", in.Addr().String(), "host", o.host)
	return server.Serve(in)
}

// kubestackProgram is the name under which the program takes KubeStack's own flags.
const kubestackProgram = "kubestack"

// kubestackCommand returns `weft provider` with KubeStack's flags, which begin with one dash.
func kubestackCommand(environment Environment) *cobra.Command {
	return &cobra.Command{
		Use: kubestackProgram, Short: "Serve KubeStack's gRPC interface, with KubeStack's flags; weft provider has more",
		SilenceUsage: true, SilenceErrors: true, DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			opts := &providerOptions{}
			version, err := opts.parseOld(cmd.ErrOrStderr(), args)
			if errors.Is(err, flag.ErrHelp) {
				return nil
			}
			if err != nil {
				return err
			}
			if version {
				_, err := fmt.Fprintln(cmd.OutOrStdout(), environment.Version)
				return err
			}
			log := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil))
			if strings.HasPrefix(opts.listen.Address, ":") {
				opts.listen.Address = "127.0.0.1" + opts.listen.Address
				log.Warn("listening on loopback only; other machines need mutual TLS, which weft provider has flags for", "address", opts.listen.Address)
			}
			return opts.run(cmd.Context(), log)
		},
	}
}

// parseOld parses KubeStack's flags. glog's flags are accepted and have no effect.
func (o *providerOptions) parseOld(out io.Writer, args []string) (version bool, err error) {
	flags := flag.NewFlagSet(kubestackProgram, flag.ContinueOnError)
	flags.SetOutput(out)
	flags.StringVar(&o.config, "conf", providerConfig, "path of kubestack.conf")
	flags.StringVar(&o.listen.Address, "port", ":4237", "HOST:PORT to serve at; without a host, 127.0.0.1")
	flags.BoolVar(&version, "version", false, "print the version and end")
	o.common(flags.StringVar)
	for _, name := range []string{"logtostderr", "alsologtostderr"} {
		flags.Bool(name, false, "no effect: messages go to stderr")
	}
	for _, name := range []string{"v", "vmodule", "stderrthreshold", "log_dir", "log_backtrace_at"} {
		flags.String(name, "", "no effect")
	}
	if err := flags.Parse(args); err != nil {
		return false, err
	}
	if flags.NArg() > 0 {
		return false, fmt.Errorf("%q is not a flag: flags begin with a dash", flags.Arg(0))
	}
	o.uids = []uint{0}
	return version, nil
}
