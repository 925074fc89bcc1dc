package supervisor

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"weft.dev/weft/lab/controlplane"
	"weft.dev/weft/lab/kubebuild"
	"weft.dev/weft/lab/machine"
	"weft.dev/weft/lab/pki"
	"weft.dev/weft/lab/plan"
	"weft.dev/weft/lab/process"
	"weft.dev/weft/lab/report"
)

// start is the start of a lab: what its parts have in common, and their order.
type start struct {
	lab      plan.Lab
	entry    machine.Entry
	self     string // the running program
	datapath plan.Datapath
	group    *process.Group
	spaces   *spaces
	journal  *journal
	log      *slog.Logger
	down     <-chan struct{} // closed when the lab must end
	plane    *controlplane.Plane
}

// run starts everything. If Kubernetes' programs must be built, that runs concurrently with steps that do not need them.
func (s *start) run(ctx context.Context) error {
	under := underlay{lab: s.lab, entry: s.entry, self: s.self, group: s.group, spaces: s.spaces}
	switching := switches{
		lab: s.lab, datapath: s.datapath, group: s.group, spaces: s.spaces, journal: s.journal, log: s.log, down: s.down,
	}
	var bin string
	built := make(chan struct{})
	return together(ctx,
		func(ctx context.Context) error {
			var err error
			if bin, err = s.buildPrograms(ctx); err != nil {
				return err
			}
			close(built)
			return nil
		},
		func(ctx context.Context) error {
			if err := s.journal.step("namespaces and links", func() error { return under.start(ctx) }); err != nil {
				return err
			}
			err := together(ctx, under.startReporters, switching.start,
				func(ctx context.Context) error {
					select {
					case <-ctx.Done():
						return ctx.Err()
					case <-built:
					}
					return s.bringCluster(ctx, bin)
				})
			if err != nil {
				return err
			}
			return s.bringPods(ctx)
		})
}

// chooseDatapath chooses the kernel's datapath if the openvswitch module is loaded: then /sys/module has a directory for it.
func chooseDatapath(want plan.Datapath) plan.Datapath {
	if want != plan.DatapathAuto {
		return want
	}
	if _, err := os.Stat("/sys/module/openvswitch"); err == nil {
		return plan.DatapathSystem
	}
	return plan.DatapathNetdev
}

// buildPrograms builds the programs that the lab runs besides Weft's, and returns the directory of Kubernetes' programs.
func (s *start) buildPrograms(ctx context.Context) (string, error) {
	for _, program := range missingFlannel(s.lab) {
		if err := s.journal.step("build "+program.String(), func() error {
			return program.Ensure(ctx, filepath.Dir(s.lab.KubernetesModule), s.group.Run)
		}); err != nil {
			return "", err
		}
	}
	return kubebuild.Ensure(ctx, kubebuild.Config{
		Module: s.lab.KubernetesModule, Kubelets: s.lab.Runtime == plan.RuntimeKubelet, Proxy: s.lab.KubeProxy,
		Run:  s.group.Run,
		Step: s.journal.step,
	})
}

func (s *start) bringCluster(ctx context.Context, bin string) error {
	ca, err := pki.New(s.lab.Path("pki"))
	if err != nil {
		return err
	}
	if err := os.MkdirAll(s.lab.Path("kubeconfig"), 0o700); err != nil {
		return fmt.Errorf("make the folder of kubeconfigs: %w", err)
	}
	s.plane = &controlplane.Plane{Lab: s.lab, Space: s.spaces.of(partControl), Bin: bin, HostAddr: s.entry.APIHost(), CA: ca}
	if err := s.plane.Credentials(); err != nil {
		return err
	}
	err = s.journal.step("etcd and API server", func() error {
		ctx, cancel := context.WithTimeout(ctx, stepLimit)
		defer cancel()
		if err := s.group.Start(ctx, s.plane.Etcd()); err != nil {
			return err
		}
		return s.group.Start(ctx, s.plane.APIServer())
	})
	if err != nil {
		return err
	}
	if err := s.installAPI(ctx); err != nil {
		return err
	}
	return s.journal.step("nodes in the cluster", func() error { return s.registerNodes(ctx) })
}

// installAPI installs Weft's resource definitions and the cluster network, if the manifests are known.
func (s *start) installAPI(ctx context.Context) error {
	crds := filepath.Join(s.lab.DeployDir, "crds")
	if s.lab.DeployDir == "" || !isDir(crds) {
		s.journal.add(report.Event{Step: "Weft's API", State: report.Done, Text: "no manifests in " + crds + ": not installed"})
		return nil
	}
	return s.journal.step("Weft's API", func() error {
		ctx, cancel := context.WithTimeout(ctx, stepLimit)
		defer cancel()
		if _, err := s.kubectl(ctx, "", "apply", "--server-side", "-f", crds); err != nil {
			return err
		}
		if _, err := s.kubectl(ctx, "", "wait", "--recursive=false", "--for=condition=Established", "--timeout=120s", "-f", crds); err != nil {
			return err
		}
		for folder, wanted := range map[string]bool{"third-party": s.lab.VPC, "stackube": s.lab.OpenStack != ""} {
			if !wanted {
				continue
			}
			if _, err := s.kubectl(ctx, "", "apply", "--server-side", "-f", filepath.Join(s.lab.DeployDir, folder)); err != nil {
				return err
			}
		}
		if err := s.configureNetworks(ctx); err != nil {
			return err
		}
		return s.routePods()
	})
}

// configureNetworks creates the objects that configure the networks of the lab.
func (s *start) configureNetworks(ctx context.Context) error {
	if s.lab.FlannelStore == plan.StoreEtcd {
		return s.bringLeases(ctx)
	}
	if s.lab.Network.Flannel() {
		if _, err := s.kubectl(ctx, flannelConfig(s.lab), "apply", "-f", "-"); err != nil {
			return err
		}
	}
	if s.lab.Network == plan.NetworkFlannel {
		return nil
	}
	_, err := s.kubectl(ctx, clusterNetwork(s.lab), "apply", "-f", "-")
	return err
}

func (s *start) kubectl(ctx context.Context, stdin string, args ...string) (string, error) {
	argv := append([]string{"env", "NO_PROXY=*", filepath.Join(s.plane.Bin, "kubectl"), "--kubeconfig=" + s.lab.Kubeconfig()}, args...)
	return s.group.Run(ctx, stdin, argv...)
}

// bringPods starts the programs that run pods, and Weft.
func (s *start) bringPods(ctx context.Context) error {
	if s.lab.Runtime == plan.RuntimeKubelet {
		return s.bringKubelets(ctx)
	}
	if err := s.journal.step("pod runtimes", func() error { return s.bringPodRuntimes(ctx) }); err != nil {
		return err
	}
	if s.lab.KubeProxy {
		if err := s.journal.step("kube-proxy", func() error { return s.bringProxies(ctx) }); err != nil {
			return err
		}
	}
	if s.lab.VPC {
		if err := s.journal.step("OVN", func() error { return s.bringOVN(ctx) }); err != nil {
			return err
		}
	}
	if s.lab.OpenStack != "" {
		if err := s.journal.step("OpenStack", func() error { return s.bringOpenStack(ctx) }); err != nil {
			return err
		}
	}
	if s.lab.NoWeft {
		return nil
	}
	return s.journal.step("Weft", func() error { return s.bringWeft(ctx) })
}

func isDir(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.IsDir()
}
