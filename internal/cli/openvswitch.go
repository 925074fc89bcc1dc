package cli

import (
	"context"
	"fmt"
	"syscall"

	"github.com/spf13/cobra"

	"weft.dev/weft/internal/vswitch"
)

func openvswitchCommand(node string) *cobra.Command {
	opts := vswitch.Options{}
	cmd := &cobra.Command{
		Use:   "openvswitch",
		Short: "Become one of Open vSwitch's daemons, in a container of a node that has none",
		Long: "Runs the image's own Open vSwitch where the node has none: the DaemonSet weft-openvswitch runs both commands, each in\n" +
			"a container of its own. The configuration is kept on the node, so that ports stay when the pod is replaced.",
		Example: "  weft openvswitch database\n  weft openvswitch switch --node-name n1",
	}
	flags := cmd.PersistentFlags()
	flags.StringVar(&opts.RunDir, "ovs-run-dir", vswitch.DefaultRunDir, "directory with Open vSwitch's sockets")
	flags.StringVar(&opts.Database, "database", vswitch.DefaultDatabase, "file of the switch's configuration; made when it is missing")
	flags.StringVar(&opts.Schema, "schema", vswitch.DefaultSchema, "the configuration's schema")
	flags.StringVar(&opts.Node, "node-name", node, "name of this node's Node object (default: $NODE_NAME)")
	cmd.AddCommand(
		become("database", "Prepare the switch's configuration, and become ovsdb-server", vswitch.Database, &opts),
		become("switch", "Wait for the switch's configuration, and become ovs-vswitchd", vswitch.Switch, &opts))
	return cmd
}

type prepareFunc func(context.Context, vswitch.Options) (vswitch.Daemon, error)

func become(use, short string, prepare prepareFunc, opts *vswitch.Options) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Args: cobra.NoArgs,
		Example: "  weft openvswitch " + use,
		RunE: func(cmd *cobra.Command, _ []string) error {
			opts.Report = func(message string) { _, _ = fmt.Fprintln(cmd.ErrOrStderr(), message) }
			daemon, err := prepare(cmd.Context(), *opts)
			if err != nil {
				return err
			}
			if err := syscall.Exec(daemon.Argv[0], daemon.Argv, daemon.Env); err != nil { //nolint:gosec // Open vSwitch's daemons
				return fmt.Errorf("become %s: %w", daemon.Argv[0], err)
			}
			return nil
		},
	}
}
