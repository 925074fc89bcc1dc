package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"weft.dev/weft/lab"
	"weft.dev/weft/lab/plan"
	"weft.dev/weft/lab/report"
)

func root() *cobra.Command {
	cmd := &cobra.Command{
		Use: "weft-lab", Short: "A whole Kubernetes cluster on one machine, with its pods on Weft",
		SilenceUsage: true, SilenceErrors: true, Args: cobra.NoArgs,
	}
	name := cmd.PersistentFlags().String("name", "lab", "the lab; several run side by side")
	cmd.AddCommand(up(name), build(), imageCmd(), down(name), status(name), env(name), execute(name), matrixCmd(name), vpcMatrixCmd(name), neutronMatrixCmd(name), openStackCmd(name), hold(), pod(name), supervise(), reporterCmd(), pods(), virtual())
	return strict(cmd)
}

func up(name *string) *cobra.Command {
	var cfg lab.Config
	cmd := &cobra.Command{
		Use: "up", Short: "Bring the lab up, or continue after an interruption", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg.Name = *name
			c, err := lab.Up(cmd.Context(), cfg, printer(cmd.ErrOrStderr()))
			if err != nil {
				return err
			}
			_, _ = fmt.Fprintf(cmd.OutOrStdout(), "Use it:       eval \"$(weft-lab env --name %[1]s)\"; kubectl get nodes\nTake it down: weft-lab down --name %[1]s\n", c.Name())
			return nil
		},
	}
	f := cmd.Flags()
	f.IntVar(&cfg.Nodes, "nodes", 2, "number of nodes")
	f.StringVar((*string)(&cfg.Runtime), "runtime", string(plan.RuntimeKubelet), "kubelet: real kubelets and containerd; cni: pods are namespaces attached through libcni")
	f.StringVar((*string)(&cfg.Datapath), "datapath", string(plan.DatapathAuto), "Open vSwitch's datapath: auto, system (the kernel's) or netdev (userspace)")
	f.BoolVar(&cfg.NoWeft, "no-weft", false, "bring up everything but Weft's own programs")
	f.BoolVar(&cfg.KubeProxy, "kube-proxy", false, "run kube-proxy also with runtime cni")
	f.BoolVar(&cfg.NoSwitch, "no-switch", false, "nodes have no Open vSwitch of their own: Weft's manifest brings it, in pods")
	f.StringVar((*string)(&cfg.Network), "network", string(plan.NetworkOverlay), "the pods' network: overlay, flannel (no Open vSwitch), or both, where pods are on flannel by annotation")
	f.StringVar(&cfg.Backend, "backend", "", "backend of the flannel network: vxlan, host-gw, ... (default vxlan)")
	f.StringVar(&cfg.Flanneld, "flanneld", "", "nodes that run the original flanneld in place of Weft, such as n2,n3; network flannel and runtime cni only")
	f.BoolVar(&cfg.NoPortmap, "no-portmap", false, "leave portmap out of the flannel network's list of plugins: Weft's agent serves host ports")
	f.StringVar((*string)(&cfg.FlannelStore), "flannel-store", "", "where nodes of the flannel network keep their leases: kube (default), or etcd, where nodes run weft flanneld and no agent; network flannel and runtime cni only")
	f.BoolVar(&cfg.DualStack, "dual-stack", false, "IPv6 beside IPv4 for nodes and pods; network flannel and runtime cni only")
	f.BoolVar(&cfg.VPC, "vpc", false, "OVN, and an outside network for the NAT gateways of VPCs: 192.168.100.0/24, on every node's ens37")
	f.StringVar(&cfg.OpenStack, "openstack", "", "ovn: an OpenStack (Keystone, Neutron with OVN, Octavia) whose Neutron serves the nodes, with an external network for routers and floating IPs (build/prepare --openstack); openvswitch: Neutron with neutron-openvswitch-agent instead, without Octavia (build/prepare --openstack openvswitch)")
	f.StringVar(&cfg.WeftBin, "weft-bin", "", "folder with weft, weft-cni, weft-flannel, weft-provider and weft-lab (default: that of this program)")
	f.StringVar(&cfg.DeployDir, "deploy", "", "folder with Weft's manifests (default: deploy/ above the programs)")
	f.StringVar(&cfg.KubernetesModule, "kubernetes-module", "", "folder with the go.mod that Kubernetes is built from (default: lab/kubernetes above the programs)")
	f.StringVar(&cfg.PluginName, "plugin-name", "", "ClusterNetwork's pluginName (default redhat/openshift-ovs-subnet)")
	return cmd
}

// printer prints each step when it is done; a step that takes longer is also printed when it begins.
func printer(w io.Writer) report.Progress {
	return func(e report.Event) {
		switch e.State {
		case report.Begin:
			_, _ = fmt.Fprintf(w, "  ...    %s\n", e.Step)
		case report.Done:
			_, _ = fmt.Fprintf(w, "%7s  %s %s\n", e.Took.Round(10*time.Millisecond), e.Step, e.Text)
		case report.Fail:
			_, _ = fmt.Fprintf(w, " FAILED  %s\n", e.Step)
		}
	}
}

func down(name *string) *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use: "down", Short: "Take the lab down, without leftovers, also after a crash", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			names := []string{*name}
			if all {
				var err error
				if names, err = lab.List(); err != nil {
					return err
				}
			}
			for _, n := range names {
				if err := lab.Down(cmd.Context(), n, printer(cmd.ErrOrStderr())); err != nil {
					return err
				}
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "all labs of this machine")
	return cmd
}

func status(name *string) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use: "status", Short: "Show nodes, addresses and programs", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			st, err := lab.Inspect(cmd.Context(), *name)
			if err != nil {
				return err
			}
			if output == "json" {
				enc := json.NewEncoder(cmd.OutOrStdout())
				enc.SetIndent("", "  ")
				return enc.Encode(st)
			}
			return table(cmd.OutOrStdout(), st)
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "table", "table or json")
	return cmd
}

func table(out io.Writer, st report.Status) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintf(w, "LAB\t%s\nPHASE\t%s\t%s\nRUNTIME\t%s\nDATAPATH\t%s\nAPI\t%s\nKUBECONFIG\t%s\nOUTSIDE\t%s\nLOGS\t%s\n\n",
		st.Name, st.Phase, st.Error, st.Config.Runtime, st.Datapath, st.API, st.Kubeconfig, st.Outside, st.LogDir)
	_, _ = fmt.Fprintf(w, "NODE\tADDRESS\tNAMESPACE\tHOLDER\n")
	for _, n := range st.Nodes {
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%d\n", n.Name, n.IP, n.Space, n.Holder)
	}
	_, _ = fmt.Fprintf(w, "\nPROGRAM\tPID\tRESTARTS\tSINCE\tLAST\n")
	for _, p := range st.Programs {
		_, _ = fmt.Fprintf(w, "%s\t%d\t%d\t%s\t%s\n", p.Name, p.Pid, p.Restarts, time.Since(p.Since).Round(time.Second), p.Last)
	}
	return w.Flush()
}

func env(name *string) *cobra.Command {
	return &cobra.Command{
		Use: "env", Short: "Print the environment for a shell to use the lab: eval \"$(weft-lab env)\"", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			st, err := lab.Inspect(cmd.Context(), *name)
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			_, _ = fmt.Fprintf(out, "export KUBECONFIG=%s\n", st.Kubeconfig)
			_, _ = fmt.Fprintf(out, "export NO_PROXY=\"${NO_PROXY:+$NO_PROXY,}169.254.0.0/16\"\n")
			if dir := lab.KubernetesBin(st.Config); dir != "" {
				_, _ = fmt.Fprintf(out, "export PATH=\"$PATH:%s\"\n", dir)
			}
			for _, variable := range lab.OpenStackEnvironment(st) {
				_, _ = fmt.Fprintf(out, "export %s\n", variable)
			}
			return nil
		},
	}
}

func execute(name *string) *cobra.Command {
	return &cobra.Command{
		Use: "exec NODE -- COMMAND...", Short: "Run a command on a node, with its input, output and exit code", Args: cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			st, err := lab.Inspect(cmd.Context(), *name)
			if err != nil {
				return err
			}
			argv, err := lab.Enter(st, args[0], args[1:])
			if err != nil {
				return err
			}
			c := exec.CommandContext(cmd.Context(), argv[0], argv[1:]...) //nolint:gosec // the user's own command
			c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
			return c.Run()
		},
	}
}
