package supervisor

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"

	"weft.dev/weft/lab/controlplane"
	"weft.dev/weft/lab/kubebuild"
	"weft.dev/weft/lab/machine"
	"weft.dev/weft/lab/plan"
	"weft.dev/weft/lab/process"
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

// bringCluster starts the cluster of Kubernetes' programs in bin.
func (s *start) bringCluster(ctx context.Context, bin string) error {
	control := s.spaces.of(partControl)
	plane, err := newPlane(s.lab, control, s.entry.APIHost(), bin)
	if err != nil {
		return err
	}
	s.plane = plane
	return cluster{
		lab: s.lab, plane: plane, group: s.group, journal: s.journal, kubectl: s.kubectl(), flannel: s.flannel(),
		router: podRouter{lab: s.lab, control: control, log: s.log, down: s.down},
	}.start(ctx)
}

func (s *start) kubectl() kubectl { return kubectl{group: s.group, plane: s.plane} }

func (s *start) flannel() flannel {
	return flannel{lab: s.lab, group: s.group, spaces: s.spaces, plane: s.plane}
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
