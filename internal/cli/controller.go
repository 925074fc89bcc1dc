package cli

import (
	"github.com/spf13/cobra"

	"weft.dev/weft/internal/controller"
)

func controllerCommand(common *commonFlags, environment Environment) *cobra.Command {
	opts := controller.Options{Version: environment.Version}
	cmd := &cobra.Command{
		Use:   "controller",
		Short: "Run the cluster's side: subnets for nodes, VNIDs for namespaces",
		Long: "Gives nodes their subnets and namespaces their VNIDs, and says on the ClusterNetwork what is wrong with it.\n" +
			"Several may run: one works at a time, chosen by a lease.",
		Example: "  weft controller --kubeconfig /etc/kubernetes/admin.conf",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if opts.Logger, _, err = common.logger(cmd.ErrOrStderr()); err != nil {
				return err
			}
			if opts.Config, err = common.config(); err != nil {
				return err
			}
			return controller.Run(cmd.Context(), opts)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&opts.LeaseNamespace, "namespace", controller.DefaultLeaseNamespace, "namespace of the lease")
	flags.StringVar(&opts.HealthAddress, "health-address", controller.DefaultHealthAddress, "host:port of /healthz, /readyz and /metrics; empty: none")
	flags.BoolVar(&opts.Defaults, "default-cluster-network", false,
		"create the ClusterNetwork default (pods 10.128.0.0/14, a /23 for each node) where no network is configured; the chart sets it")
	flags.StringVar(&opts.MetricsAddress, "metrics-address", "", "host:port of /metrics alone, besides --health-address; whoever reaches it may read it; empty: none")
	return cmd
}
