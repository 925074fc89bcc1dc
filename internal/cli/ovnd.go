package cli

import (
	"context"
	"fmt"
	"net/netip"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"weft.dev/weft/internal/ovnd"
	"weft.dev/weft/internal/vswitch"
)

// ovnCommand returns the commands of the StatefulSet weft-ovn and of the DaemonSet weft-ovn-controller.
func ovnCommand(common *commonFlags, node string) *cobra.Command {
	opts := ovnd.Options{}
	var address, namespace string
	cmd := &cobra.Command{
		Use:   "ovn",
		Short: "Become one of OVN's daemons, in a container",
		Long: "Runs the image's own OVN for VPCs: the StatefulSet weft-ovn runs the databases, northd and the guard, and the DaemonSet\n" +
			"weft-ovn-controller an ovn-controller on each node.",
		Example: "  weft ovn northbound --address 192.0.2.10\n  weft ovn controller --node-name n1",
		PersistentPreRunE: func(*cobra.Command, []string) error {
			if address == "" {
				return nil
			}
			var err error
			if opts.Address, err = netip.ParseAddr(address); err != nil {
				return fmt.Errorf("--address: %w", err)
			}
			return nil
		},
	}
	flags := cmd.PersistentFlags()
	flags.StringVar(&opts.RunDir, "run-dir", ovnd.DefaultRunDir, "directory of the databases' sockets")
	flags.StringVar(&opts.StateDir, "database-dir", ovnd.DefaultStateDir, "directory of the databases and their keys")
	flags.StringVar(&opts.SchemaDir, "schema-dir", ovnd.DefaultSchemaDir, "directory of OVN's schemas")
	flags.StringVar(&opts.NodeDir, "node-dir", ovnd.DefaultNodeDir, "directory of a node's keys, which its agent makes")
	flags.StringVar(&opts.OVSRunDir, "ovs-run-dir", vswitch.DefaultRunDir, "directory with Open vSwitch's sockets")
	flags.StringVar(&opts.Node, "node-name", node, "name of this node's Node object (default: $NODE_NAME)")
	flags.StringVar(&address, "address", "", "this node's address, where the databases are served")
	flags.StringVar(&namespace, "namespace", "weft", "namespace of the ConfigMaps weft-ovn and weft-ovn-clients")
	serve := func(db ovnd.Database) func(context.Context, ovnd.Options) (vswitch.Daemon, error) {
		return func(ctx context.Context, o ovnd.Options) (vswitch.Daemon, error) { return ovnd.Serve(ctx, db, o) }
	}
	cmd.AddCommand(
		&cobra.Command{
			Use: "prepare", Short: "Make the databases' keys", Args: cobra.NoArgs, Example: "  weft ovn prepare",
			RunE: func(*cobra.Command, []string) error { return ovnd.Prepare(opts, time.Now()) },
		},
		becomeOVN("northbound", "Prepare the northbound database, and become its server", serve(ovnd.NorthboundDB), &opts),
		becomeOVN("southbound", "Prepare the southbound database, and become its server", serve(ovnd.SouthboundDB), &opts),
		becomeOVN("northd", "Wait for the databases, and become ovn-northd", ovnd.Northd, &opts),
		becomeOVN("controller", "Wait for the node's keys and switch, and become ovn-controller", ovnd.Controller, &opts),
		guardCommand(common, &opts, &namespace))
	return cmd
}

func becomeOVN(use, short string, prepare func(context.Context, ovnd.Options) (vswitch.Daemon, error), opts *ovnd.Options) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Args: cobra.NoArgs, Example: "  weft ovn " + use,
		RunE: func(cmd *cobra.Command, _ []string) error {
			opts.Report = func(message string) { _, _ = fmt.Fprintln(cmd.ErrOrStderr(), message) }
			daemon, err := prepare(cmd.Context(), *opts)
			if err != nil {
				return err
			}
			if err := syscall.Exec(daemon.Argv[0], daemon.Argv, daemon.Env); err != nil { //nolint:gosec // OVN's daemons
				return fmt.Errorf("become %s: %w", daemon.Argv[0], err)
			}
			return nil
		},
	}
}

func guardCommand(common *commonFlags, opts *ovnd.Options, namespace *string) *cobra.Command {
	return &cobra.Command{
		Use: "guard", Short: "Serve the databases to controllers and nodes, once they are complete", Args: cobra.NoArgs,
		Example: "  weft ovn guard --address 192.0.2.10",
		RunE: func(cmd *cobra.Command, _ []string) error {
			log, _, err := common.logger(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			config, err := common.config()
			if err != nil {
				return err
			}
			guard, err := ovnd.NewGuard(ovnd.GuardOptions{Options: *opts, Config: config, Namespace: *namespace, Log: log})
			if err != nil {
				return err //nolint:wrapcheck // it says what failed
			}
			return guard.Run(cmd.Context())
		},
	}
}
