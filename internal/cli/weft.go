// Package cli is the command line of weft. Each file has one command, which parses flags into options and calls the package that does the
// work.
package cli

import (
	"fmt"
	"io"
	"log/slog"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2" //nolint:depguard // client-go logs by it: what it says goes into our own log
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"weft.dev/weft/internal/command"
)

// Environment holds the values from the program's environment. Flags take precedence over them.
type Environment struct {
	// Node is the name of the node (NODE_NAME).
	Node string
	// Kubeconfig is the path of a kubeconfig (KUBECONFIG).
	Kubeconfig string
	// Version is the program's release.
	Version string
	// Program is the name by which the program was called. As kubectl-weft it is a plugin of kubectl.
	Program string
	// UID is the id of the user that runs the program; 0 is root.
	UID int
	// Getenv returns GOGC, flanneld's variables and, if requests are traced, those of OpenTelemetry. Default: no variable is set.
	Getenv func(string) string
}

// Weft returns the command weft with all its commands.
func Weft(environment Environment) *cobra.Command {
	if environment.Program == flanneldProgram {
		return alone(environment)
	}
	if environment.Program == copyProgram || environment.Program == installConfProgram {
		return copyCommand(environment.Program)
	}
	root := &cobra.Command{
		Use:   "weft",
		Short: "A network for Kubernetes on Open vSwitch",
		Long: "Weft is a network for Kubernetes on Open vSwitch, nftables and the Linux kernel.\n" +
			"`weft agent` runs on every node, `weft controller` once or twice a cluster; deploy/ installs both.",
		Version:       environment.Version,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	common := &commonFlags{kubeconfig: environment.Kubeconfig, environment: environment.Kubeconfig}
	common.register(root)
	agents, plugin, ovs, clean, diff, level := agentCommand(common, environment), installPluginCommand(), openvswitchCommand(environment.Node),
		cleanupCommand(), diffCommand(environment.UID), logLevelCommand()
	provider, ovnDaemons := providerCommand(), ovnCommand(common, environment.Node)
	command.AsRoot(environment.UID, nil, agents, plugin, clean, level, provider)
	command.AsRoot(environment.UID, nil, append(ovs.Commands(), ovnDaemons.Commands()...)...)
	root.AddCommand(agents, controllerCommand(common, environment), plugin, ovs, ovnDaemons, clean, statusCommand(common), tenantCommand(common), diff,
		flowsCommand(common, environment.UID), realisedCommand(common), level, versionCommand(), provider, flanneldCommand(common, environment))
	command.Strict(root)
	if environment.Program == pluginProgram {
		root.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl weft"}
	}
	return root
}

// alone returns flannel's daemon as a separate program.
func alone(environment Environment) *cobra.Command {
	cmd := flanneldCommand(&commonFlags{log: command.DefaultLog()}, environment)
	cmd.Use, cmd.SilenceUsage, cmd.SilenceErrors = flanneldProgram+" [flags]", true, true
	return cmd
}

// pluginProgram is the name by which kubectl finds the program as its plugin.
const pluginProgram = "kubectl-weft"

// commonFlags are the flags of all commands.
type commonFlags struct {
	kubeconfig string
	// environment is the kubeconfig from the environment.
	environment string
	log         command.Log
}

func (f *commonFlags) register(root *cobra.Command) {
	flags := root.PersistentFlags()
	flags.StringVar(&f.kubeconfig, "kubeconfig", f.kubeconfig, "path of the kubeconfig; empty: the pod's service account")
	f.log.Register(flags)
}

// config returns the configuration of the API server's client.
func (f *commonFlags) config() (*rest.Config, error) {
	if f.kubeconfig == "" {
		config, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("not in a pod, and no --kubeconfig: %w", err)
		}
		return config, nil
	}
	config, err := clientcmd.BuildConfigFromFlags("", f.kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig: %w", err)
	}
	return config, nil
}

// logger returns the log that the flags describe, and its level. The libraries of Kubernetes log there as well.
func (f *commonFlags) logger(w io.Writer) (*slog.Logger, *slog.LevelVar, error) {
	log, level, err := f.log.Open(w)
	if err != nil {
		return nil, nil, err
	}
	libraries := logr.FromSlogHandler(log.Handler().WithAttrs([]slog.Attr{slog.String("library", "kubernetes")}))
	ctrllog.SetLogger(libraries)
	klog.SetLoggerWithOptions(libraries, klog.ContextualLogger(true))
	return log, level, nil
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the program's release", Args: cobra.NoArgs,
		Long:    "Prints the program's release. The releases that run in a cluster are in weft status.",
		Example: "  weft version",
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s version %s\n", cmd.Root().Name(), cmd.Root().Version)
			return err
		},
	}
}
