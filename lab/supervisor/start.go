package supervisor

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"time"

	"weft.dev/weft/lab/controlplane"
	"weft.dev/weft/lab/kubebuild"
	"weft.dev/weft/lab/plan"
)

// start is the start of a lab: the order of its parts.
type start struct {
	basis

	down  <-chan struct{}     // closed when the lab must end
	plane *controlplane.Plane // nil until bringCluster
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
			if s.lab.Runtime == plan.RuntimeKubelet {
				return s.bringKubelets(ctx)
			}
			return s.bringProcesses(ctx)
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

// bringProcesses starts the programs that run pods on nodes without a kubelet, the networks' own programs, and Weft.
func (s *start) bringProcesses(ctx context.Context) error {
	runtimes := podRuntimes{lab: s.lab, self: s.self, group: s.group, spaces: s.spaces, plane: s.plane}
	if err := s.journal.step("pod runtimes", func() error { return runtimes.start(ctx) }); err != nil {
		return err
	}
	if s.lab.KubeProxy {
		if err := s.journal.step("kube-proxy", func() error { return runtimes.startProxies(ctx) }); err != nil {
			return err
		}
	}
	ovn := ovnProcesses{lab: s.lab, datapath: s.datapath, group: s.group, spaces: s.spaces}
	if s.lab.VPC {
		if err := s.journal.step("OVN", func() error { return ovn.start(ctx) }); err != nil {
			return err
		}
	}
	if s.lab.OpenStack != "" {
		if err := s.bringOpenStack(ctx); err != nil {
			return err
		}
	}
	if s.lab.NoWeft {
		return nil
	}
	weft := weftProcesses{
		lab: s.lab, group: s.group, spaces: s.spaces, flannel: s.flannel(), kubeconfig: s.plane.KubeconfigOf(controlplane.Weft),
		controllerFlags: slices.Concat(ovn.controllerFlags(), cloudController(s.lab)),
		agentFlags:      slices.Concat(vpcAgent(s.lab), cloudAgent(s.lab), flannelAgent(s.lab)),
	}
	return s.journal.step("Weft", func() error { return weft.start(ctx) })
}

// bringKubelets starts the programs that run pods on every node, and Weft in pods.
func (s *start) bringKubelets(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	if err := s.group.Start(ctx, s.plane.ControllerManager()); err != nil {
		return err
	}
	if err := s.group.Start(ctx, s.plane.Scheduler()); err != nil {
		return err
	}
	var archives []string
	err := s.journal.step("images", func() error {
		var err error
		archives, err = images{lab: s.lab, bin: s.plane.Bin, run: s.group.Run}.archives(ctx)
		return err
	})
	if err != nil {
		return err
	}
	var parts []func(context.Context) error
	if s.lab.OpenStack != "" {
		parts = append(parts, s.bringOpenStack)
	}
	nodes := kubelets{lab: s.lab, self: s.self, group: s.group, spaces: s.spaces, plane: s.plane, kubectl: s.kubectl()}
	for _, n := range s.lab.AllNodes() {
		parts = append(parts, func(ctx context.Context) error {
			return s.journal.step("containerd, kubelet and kube-proxy of "+n.Name, func() error { return nodes.start(ctx, n, archives) })
		})
	}
	if err := together(ctx, parts...); err != nil {
		return err
	}
	if s.lab.NoWeft {
		return nil
	}
	pods := deployment{lab: s.lab, kubectl: s.kubectl()}
	if err := s.journal.step("Weft in pods", func() error { return pods.weft(ctx) }); err != nil {
		return err
	}
	return s.journal.step("DNS in pods", func() error { return pods.dns(ctx) })
}

func (s *start) bringOpenStack(ctx context.Context) error {
	c := cloud{lab: s.lab, datapath: s.datapath, group: s.group, spaces: s.spaces}
	return s.journal.step("OpenStack", func() error { return c.start(ctx) })
}

func (s *start) kubectl() kubectl { return kubectl{group: s.group, plane: s.plane} }

func (s *start) flannel() flannel {
	return flannel{lab: s.lab, group: s.group, spaces: s.spaces, plane: s.plane}
}
