package cli

import (
	"fmt"

	"weft.dev/weft/internal/agent/cniconf"

	"github.com/spf13/cobra"

	"weft.dev/weft/internal/agent"
	"weft.dev/weft/internal/cleanup"
)

func cleanupCommand() *cobra.Command {
	var opts cleanup.Options
	var stay bool
	cmd := &cobra.Command{
		Use:   "cleanup",
		Short: "Remove Weft from this node, after the agent was removed",
		Long: "Removes all that Weft made on this node: the runtime's configuration and the plugin, pods' links, the bridge br0\n" +
			"and all on it, the nftables inet weft and arp weft with the administrator's chain in them, rules in other programs' chains,\n" +
			"and the folders of state. It refuses to run while an agent runs. Pods that still run lose their network.\n" +
			"net.ipv4.ip_forward is not changed: other programs need it as well.\n" +
			"With --give-back flannel, pods keep running: flannel and its plugin serve them again.",
		Example: "  weft cleanup\n\n" +
			"  # Return a node to flannel, with its pods\n" +
			"  weft cleanup --give-back flannel\n\n" +
			"  # On all nodes, after kubectl -n weft delete daemonset weft-agent\n" +
			"  kubectl apply -f deploy/cleanup.yaml",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			opts.Socket, opts.Ports, opts.CNIConf = agent.Socket(opts.RunDir), agent.PortsNamespace(opts.RunDir), cniconf.Name
			opts.Records = agent.Records(opts.StateDir)
			opts.Parts = cleanupParts()
			opts.Report = func(what string) { _, _ = fmt.Fprintln(cmd.OutOrStdout(), "removed", what) }
			if err := cleanup.Run(cmd.Context(), opts); err != nil {
				return err
			}
			done := "nothing of Weft's is left on this node"
			if opts.GiveBack != "" {
				done = "the node is given back with its pods: start " + opts.GiveBack
			}
			_, _ = fmt.Fprintln(cmd.OutOrStdout(), done)
			if stay {
				<-cmd.Context().Done()
			}
			return nil
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&opts.Root, "root", "/", "where the node's file system is")
	flags.StringVar(&opts.OVSRunDir, "ovs-run-dir", agent.DefaultOVSRunDir, "directory with Open vSwitch's sockets")
	flags.StringVar(&opts.StateDir, "state-dir", agent.DefaultStateDir, "directory of the attachment records")
	flags.StringVar(&opts.RunDir, "run-dir", agent.DefaultRunDir, "directory of the agent's sockets")
	flags.StringVar(&opts.CNIConfDir, "cni-conf-dir", agent.DefaultCNIConfDir, "directory of the runtime's network configurations")
	flags.StringVar(&opts.Plugin, "plugin", "/opt/cni/bin/weft", "the CNI plugin's executable")
	flags.StringVar(&opts.GiveBack, "give-back", "", "network whose pods keep running, and are served again by the program that Weft replaced: flannel")
	flags.BoolVar(&stay, "stay", false, "after the cleanup, wait to be stopped: a pod that ends would be started again")
	return cmd
}
