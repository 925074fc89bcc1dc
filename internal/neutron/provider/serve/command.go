package serve

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"weft.dev/weft/internal/command"
)

// Program is the program's name.
const Program = "weft-provider"

// KubeStack is the name under which the program takes KubeStack's own flags.
const KubeStack = "kubestack"

// Defaults of the flags.
const (
	defaultConfig  = "/etc/kubestack.conf"
	defaultListen  = "127.0.0.1:4237"
	defaultRecords = "/var/lib/weft/provider"
	dockerSocket   = "/var/run/docker.sock"
	criSocket      = "/run/containerd/containerd.sock"
)

// Describe returns the command named name, with its flags. It does nothing. `weft provider` has the same flags.
func Describe(name string) *cobra.Command {
	cmd, _ := describe(name)
	return cmd
}

func describe(name string) (*cobra.Command, *options) {
	o := &options{}
	cmd := &cobra.Command{
		Use:   name,
		Short: "Serve KubeStack's gRPC interface: OpenStack networks, load balancers and pods on them",
		Long: "Serves the gRPC interface of KubeStack (package types) to its clients. It needs OpenStack and, for pods, Open vSwitch on\n" +
			"this node; it needs neither Kubernetes' API nor the agent.\n\n" +
			"Callers on loopback addresses and unix sockets are checked by their user; other addresses need mutual TLS.",
		Args: cobra.NoArgs,
	}
	flags := cmd.Flags()
	flags.StringVar(&o.config, "config", defaultConfig, "path of kubestack.conf")
	flags.StringVar(&o.listen.Address, "listen", defaultListen, "HOST:PORT or unix:PATH to serve at")
	flags.UintSliceVar(&o.uids, "allow-uid", []uint{0}, "users that may call by loopback and unix sockets")
	flags.StringVar(&o.listen.CertFile, "tls-cert", "", "path of the server's certificate, PEM; needed for addresses that other machines reach")
	flags.StringVar(&o.listen.KeyFile, "tls-key", "", "path of the certificate's key")
	flags.StringVar(&o.listen.ClientCAFile, "client-ca", "", "path of the authority that signs clients' certificates")
	o.both(flags.StringVar)
	return cmd, o
}

// both registers the flags of both forms of the command. Both flag packages have a function of add's type.
func (o *options) both(add func(into *string, name, otherwise, usage string)) {
	add(&o.host, "host", "", "this node's name in Neutron (external_ids:hostname of its Open vSwitch); empty: the host's name")
	add(&o.cluster, "cluster", "provider", "name of this installation; it marks the objects that it creates in OpenStack")
	add(&o.records, "records", defaultRecords, "folder of the pods' records")
	add(&o.ovsdb, "ovsdb", "", "Open vSwitch's database, such as unix:/run/openvswitch/db.sock; empty: the usual one")
	add(&o.runtimes.Docker, "docker-socket", dockerSocket, "path of Docker's socket")
	add(&o.runtimes.CRI, "cri-socket", criSocket, "path of the CRI runtime's socket")
}

// Arguments returns the arguments with which the program has the same flags. Flags that the program lacks are left out.
func Arguments(flags *pflag.FlagSet) []string {
	var args []string
	own := Command(Program, "", 0).Flags()
	flags.Visit(func(f *pflag.Flag) {
		if own.Lookup(f.Name) == nil {
			return
		}
		value := f.Value.String()
		if list, is := f.Value.(pflag.SliceValue); is {
			value = strings.Join(list.GetSlice(), ",")
		}
		args = append(args, "--"+f.Name+"="+value)
	})
	return args
}

// Command returns the program's command, called by the user uid. Under the name [KubeStack] it has KubeStack's flags, which begin with one
// dash.
func Command(name, version string, uid int) *cobra.Command {
	if name == KubeStack {
		return kubestack(version)
	}
	cmd, o := describe(Program)
	cmd.Version, cmd.SilenceUsage, cmd.SilenceErrors = version, true, true
	cmd.Example = "  weft-provider --config /etc/kubestack.conf --listen 127.0.0.1:4237"
	var log command.Log
	log.Register(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		logger, _, err := log.Open(cmd.ErrOrStderr())
		if err != nil {
			return err
		}
		return o.run(cmd.Context(), logger)
	}
	command.AsRoot(uid, nil, cmd)
	command.Strict(cmd)
	return cmd
}

func kubestack(version string) *cobra.Command {
	return &cobra.Command{
		Use: KubeStack, Short: "Serve KubeStack's gRPC interface, with KubeStack's flags; weft-provider has more",
		SilenceUsage: true, SilenceErrors: true, DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			o := &options{}
			asked, err := o.parseOld(cmd.ErrOrStderr(), args)
			if errors.Is(err, flag.ErrHelp) {
				return nil
			}
			if err != nil {
				return err
			}
			if asked {
				_, err := fmt.Fprintln(cmd.OutOrStdout(), version)
				return err
			}
			plain := command.DefaultLog()
			log, _, err := plain.Open(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			if strings.HasPrefix(o.listen.Address, ":") {
				o.listen.Address = "127.0.0.1" + o.listen.Address
				log.Warn("listening on loopback only; other machines need mutual TLS, which weft-provider has flags for", "address", o.listen.Address)
			}
			return o.run(cmd.Context(), log)
		},
	}
}

// parseOld parses KubeStack's flags. glog's flags are accepted and have no effect.
func (o *options) parseOld(out io.Writer, args []string) (version bool, err error) {
	flags := flag.NewFlagSet(KubeStack, flag.ContinueOnError)
	flags.SetOutput(out)
	flags.StringVar(&o.config, "conf", defaultConfig, "path of kubestack.conf")
	flags.StringVar(&o.listen.Address, "port", ":4237", "HOST:PORT to serve at; without a host, 127.0.0.1")
	flags.BoolVar(&version, "version", false, "print the version and end")
	o.both(flags.StringVar)
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
