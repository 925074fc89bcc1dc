package cli

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"weft.dev/weft/internal/command"
	"weft.dev/weft/internal/flannel/daemon"
	"weft.dev/weft/internal/flannel/etcdstore"
	"weft.dev/weft/internal/flannel/kubestore"
	"weft.dev/weft/internal/flannel/lease"
	"weft.dev/weft/internal/flannel/netconf"
	"weft.dev/weft/internal/flannel/subnetenv"
)

// flanneldProgram is the name under which the program is flannel's daemon.
const flanneldProgram = "flanneld"

// detailVerbosity is the lowest -v at which details are logged.
const detailVerbosity = 2

func flanneldCommand(common *commonFlags, environment Environment) *cobra.Command {
	return &cobra.Command{
		Use:   "flanneld [flags of flanneld]",
		Short: "Run the daemon of a flannel network on this node",
		Long: "Takes flanneld's flags and environment, keeps this node's lease in Kubernetes or etcd, and connects the node with the\n" +
			"others: with this daemon or with flanneld. Called by the name flanneld, the program is this command.\n" +
			"`weft flanneld --help` lists the flags.",
		Example: "  NODE_NAME=worker-1 weft flanneld --kube-subnet-mgr --kubeconfig-file=/etc/kubernetes/kubelet.conf --iface=eth0 --ip-masq\n\n" +
			"  weft flanneld --etcd-endpoints=http://192.0.2.1:2379 --iface=eth0 --ip-masq",
		DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			getenv := environment.Getenv
			if getenv == nil {
				getenv = func(string) string { return "" }
			}
			flags, err := netconf.ParseFlags(args, getenv, cmd.ErrOrStderr())
			if errors.Is(err, flag.ErrHelp) {
				return nil
			}
			if err != nil {
				return command.Refuse(nil, err)
			}
			if flags.Version {
				_, err := fmt.Fprintln(cmd.ErrOrStderr(), environment.Version)
				return err
			}
			if flags.Verbosity >= detailVerbosity {
				common.log.Level = "debug"
			}
			log, _, err := common.logger(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			for _, unused := range flags.Unused {
				log.Info("flag has no effect", "flag", unused)
			}
			store, err := flanneldStore(cmd.Context(), flags, getenv, log)
			if err != nil {
				return err
			}
			if getenv("GOGC") == "" {
				collectLittle()
			}
			options := daemon.Options{Flags: flags, Store: store, Open: true, Established: notifySystemd(getenv, log), Log: log}
			return runFlanneld(cmd.Context(), daemon.New(options))
		},
	}
}

// notifySystemd returns a function that reports to systemd that the daemon has started.
func notifySystemd(getenv func(string) string, log *slog.Logger) func(daemon.State) {
	return func(daemon.State) {
		if err := daemon.NotifyReady(getenv("NOTIFY_SOCKET")); err != nil {
			log.Warn("systemd was not notified that the daemon has started", "error", err)
		}
	}
}

// runFlanneld runs the daemon and its health server until one of them ends.
func runFlanneld(ctx context.Context, d *daemon.Daemon) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	health := make(chan error, 1)
	go func() {
		err := d.Health(ctx)
		if err != nil {
			cancel(err)
		}
		health <- err
	}()
	err := d.Run(ctx)
	cancel(nil)
	return errors.Join(err, <-health)
}

func flanneldStore(ctx context.Context, flags *netconf.Flags, getenv func(string) string, log *slog.Logger) (daemon.Store, error) {
	if !flags.Kube.Enabled {
		former := formerSubnets(flags.SubnetFile, log)
		return etcdstore.New(etcdstore.Options{Flags: flags.Etcd, Former: former.Subnet, Former6: former.Subnet6, Log: log})
	}
	keys, err := lease.NewKeys(flags.Kube.AnnotationPrefix)
	if err != nil {
		return nil, fmt.Errorf("--kube-annotation-prefix: %w", err)
	}
	config, err := clientcmd.BuildConfigFromFlags(flags.Kube.APIURL, flags.Kube.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig-file, --kube-api-url: %w", err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig-file, --kube-api-url: %w", err)
	}
	node, err := nodeName(ctx, client, getenv)
	if err != nil {
		return nil, err
	}
	return kubestore.New(kubestore.Options{
		Client: client, Node: node, Keys: keys, ConfigPath: flags.Kube.NetConfPath, Condition: flags.Kube.Condition, Log: log,
	}), nil
}

// formerSubnets reads the former subnets from subnet.env. If the file cannot be read or parsed, there is no former subnet.
func formerSubnets(path string, log *slog.Logger) subnetenv.Env {
	text, err := os.ReadFile(path)
	if err != nil {
		return subnetenv.Env{}
	}
	env, err := subnetenv.Parse(text)
	if err != nil {
		log.Warn("subnet file from before is not valid; its subnets are not asked for", "path", path, "error", err)
		return subnetenv.Env{}
	}
	return env
}

// nodeName returns the name of this node: $NODE_NAME, or that of the node that this pod runs on.
func nodeName(ctx context.Context, client kubernetes.Interface, getenv func(string) string) (string, error) {
	if node := getenv("NODE_NAME"); node != "" {
		return node, nil
	}
	name, namespace := getenv("POD_NAME"), getenv("POD_NAMESPACE")
	if name == "" || namespace == "" {
		return "", errors.New("the node's name is not known: set NODE_NAME, or POD_NAME and POD_NAMESPACE")
	}
	pod, err := client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("find the node of pod %s/%s (POD_NAMESPACE, POD_NAME): %w", namespace, name, err)
	}
	if pod.Spec.NodeName == "" {
		return "", fmt.Errorf("pod %s/%s (POD_NAMESPACE, POD_NAME) is on no node yet", namespace, name)
	}
	return pod.Spec.NodeName, nil
}
