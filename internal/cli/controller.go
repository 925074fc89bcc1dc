package cli

import (
	"fmt"
	"net/netip"
	"runtime/debug"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"weft.dev/weft/internal/controller"
	neutroncluster "weft.dev/weft/internal/neutron/cluster"
)

func controllerCommand(common *commonFlags, environment Environment) *cobra.Command {
	opts := controller.Options{Version: environment.Version}
	neutron := neutronFlags{}
	var northbound ovnFlags
	cmd := &cobra.Command{
		Use:   "controller",
		Short: "Run the cluster's side: subnets for nodes, VNIDs for namespaces, networks in OpenStack",
		Long: "Gives nodes their subnets and namespaces their VNIDs, and reports errors in the ClusterNetwork's conditions.\n" +
			"With --neutron-config it keeps an OpenStack in step with stackube's Tenants and Networks.\n" +
			"Several replicas may run: one works at a time, elected by a lease.",
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
			if opts.Neutron, err = neutron.options(); err != nil {
				return err
			}
			if opts.Northbound, err = northbound.config(opts.Config, opts.LeaseNamespace); err != nil {
				return err
			}
			if environment.Getenv("GOGC") == "" {
				debug.SetGCPercent(collectAt)
				// What reading all objects took is not needed any more, and would stay resident: with 10,000 pods in VPCs 50 MB.
				defer time.AfterFunc(startsWithin, debug.FreeOSMemory).Stop()
				opts.Loaded = func() { go debug.FreeOSMemory() }
			}
			return controller.Run(cmd.Context(), opts)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&opts.LeaseNamespace, "namespace", controller.DefaultLeaseNamespace, "namespace of the lease")
	flags.StringVar(&opts.HealthAddress, "health-address", controller.DefaultHealthAddress, "host:port of /healthz, /readyz and /metrics; empty: none")
	flags.BoolVar(&opts.Defaults, "default-cluster-network", false,
		"create the ClusterNetwork default (pods 10.128.0.0/14, a /23 for each node) where no network is configured; the chart sets it")
	flags.StringVar(&opts.MetricsAddress, "metrics-address", "", "host:port of /metrics alone, besides --health-address; every client that reaches it can read it; empty: none")
	neutron.register(flags)
	northbound.register(cmd)
	return cmd
}

// neutronFlags are the flags for networks in OpenStack. The ranges and their defaults are those of stackube.
type neutronFlags struct {
	config, cluster, userCIDR, userGateway string
	ranges, reserved                       []string
}

func (f *neutronFlags) register(flags *pflag.FlagSet) {
	flags.StringVar(&f.config, "neutron-config", "", "path of kubestack.conf; serves stackube's Tenants and Networks in that OpenStack; empty: not served")
	flags.StringVar(&f.cluster, "neutron-cluster", neutroncluster.DefaultCluster,
		"name of this cluster in OpenStack's descriptions; clusters that share an OpenStack need different names")
	flags.StringVar(&f.userCIDR, "neutron-user-cidr", "10.244.0.0/16", "range of the Network that each Tenant gets; must not overlap nodes, pods or Services")
	flags.StringSliceVar(&f.ranges, "neutron-ranges", nil,
		"ranges that tenants' networks may use; nodes route pods' addresses, so packets of nodes to these ranges go to tenants; empty: only --neutron-user-cidr")
	flags.StringSliceVar(&f.reserved, "neutron-reserved", nil,
		"further ranges that nodes need, such as those of registries and name servers: no tenant's network may overlap them")
	flags.StringVar(&f.userGateway, "neutron-user-gateway", "", "router's address in --neutron-user-cidr; empty: the first")
}

// options returns nil if no OpenStack is configured.
func (f *neutronFlags) options() (*neutroncluster.Options, error) {
	if f.config == "" {
		return nil, nil //nolint:nilnil // there is none, and that is no error
	}
	opts := &neutroncluster.Options{Config: f.config, Cluster: f.cluster}
	var err error
	if opts.Ranges, err = ranges("--neutron-ranges", f.ranges); err != nil {
		return nil, err
	}
	if opts.ReservedRanges, err = ranges("--neutron-reserved", f.reserved); err != nil {
		return nil, err
	}
	if opts.UserCIDR, err = netip.ParsePrefix(f.userCIDR); err != nil || !opts.UserCIDR.Addr().Is4() || opts.UserCIDR != opts.UserCIDR.Masked() {
		return nil, fmt.Errorf("--neutron-user-cidr: %q is not an IPv4 range whose host bits are zero, such as 10.244.0.0/16", f.userCIDR)
	}
	opts.UserGateway = opts.UserCIDR.Addr().Next()
	if f.userGateway != "" {
		if opts.UserGateway, err = netip.ParseAddr(f.userGateway); err != nil || !opts.UserCIDR.Contains(opts.UserGateway) {
			return nil, fmt.Errorf("--neutron-user-gateway: %q is not an address in %s", f.userGateway, opts.UserCIDR)
		}
	}
	return opts, nil
}

// ranges parses the ranges of a flag.
func ranges(flag string, texts []string) ([]netip.Prefix, error) {
	var all []netip.Prefix
	for _, text := range texts {
		p, err := netip.ParsePrefix(text)
		if err != nil || p != p.Masked() {
			return nil, fmt.Errorf("%s: %q is not a range whose host bits are zero, such as 192.168.0.0/16", flag, text)
		}
		all = append(all, p)
	}
	return all, nil
}
