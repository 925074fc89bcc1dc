package cli

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"weft.dev/weft/internal/ovnd"
	"weft.dev/weft/internal/vswitch"
)

// ovnCommand returns the commands of the StatefulSet weft-ovn and of the DaemonSet weft-ovn-controller.
func ovnCommand(common *commonFlags, node string) *cobra.Command {
	opts := ovnd.Options{}
	var address, server string
	cmd := &cobra.Command{
		Use:   "ovn",
		Short: "Become one of OVN's daemons, in a container",
		Long: "Runs the image's own OVN for VPCs: the StatefulSet weft-ovn runs the databases, northd and the guard, and the DaemonSet\n" +
			"weft-ovn-controller an ovn-controller on each node.",
		Example: "  weft ovn northbound --address 192.0.2.10\n  weft ovn controller --node-name n1",
		PersistentPreRunE: func(*cobra.Command, []string) error {
			var err error
			if opts.Server, err = strconv.Atoi(server[strings.LastIndex(server, "-")+1:]); err != nil {
				return fmt.Errorf("--server: %.64q does not end with a number: pass the pod's name, such as weft-ovn-0", server)
			}
			if address == "" {
				return nil
			}
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
	flags.IntVar(&opts.Servers, "servers", 1, "number of servers of each database: 1 or 3, fixed at installation")
	flags.StringVar(&server, "server", "0", "number of this server, from 0, or the name of its pod, which ends with it")
	flags.StringVar(&opts.Namespace, "namespace", "weft", "namespace of the ConfigMaps weft-ovn and weft-ovn-clients")
	serve := func(db ovnd.Database) func(context.Context, ovnd.Options) (vswitch.Daemon, error) {
		return func(ctx context.Context, o ovnd.Options) (vswitch.Daemon, error) {
			if o.Servers > 1 {
				var err error
				if o.Config, err = common.config(); err != nil {
					return vswitch.Daemon{}, err
				}
			}
			return ovnd.Serve(ctx, db, o)
		}
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
		readyCommand(&opts), guardCommand(common, &opts))
	return cmd
}

func readyCommand(opts *ovnd.Options) *cobra.Command {
	databases := map[string]ovnd.Database{"northbound": ovnd.NorthboundDB, "southbound": ovnd.SouthboundDB}
	return &cobra.Command{
		Use: "ready northbound|southbound", Short: "Probe a database's server: one of a cluster has joined it and is up to date",
		Args: cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs), ValidArgs: slices.Sorted(maps.Keys(databases)),
		Example: "  weft ovn ready northbound --servers 3",
		RunE: func(cmd *cobra.Command, args []string) error {
			return ovnd.Ready(cmd.Context(), databases[args[0]], *opts)
		},
	}
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

func guardCommand(common *commonFlags, opts *ovnd.Options) *cobra.Command {
	return &cobra.Command{
		Use: "guard", Short: "Serve the databases to controllers and nodes, once they are complete", Args: cobra.NoArgs,
		Example: "  weft ovn guard --address 192.0.2.10",
		RunE: func(cmd *cobra.Command, _ []string) error {
			log, _, err := common.logger(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			if opts.Config, err = common.config(); err != nil {
				return err
			}
			guard, err := ovnd.NewGuard(ovnd.GuardOptions{Options: *opts, Log: log})
			if err != nil {
				return err //nolint:wrapcheck // it says what failed
			}
			return guard.Run(cmd.Context())
		},
	}
}
