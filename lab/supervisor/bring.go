package supervisor

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	"weft.dev/weft/lab/controlplane"
	"weft.dev/weft/lab/ground"
	"weft.dev/weft/lab/kubebuild"
	"weft.dev/weft/lab/ovsnode"
	"weft.dev/weft/lab/pki"
	"weft.dev/weft/lab/plan"
	"weft.dev/weft/lab/process"
	"weft.dev/weft/lab/report"
)

// The lab's own namespaces, beside those of the nodes.
const (
	partUnderlay  = "ul"  // the bridge that connects all namespaces, and the router
	partControl   = "cp"  // the control plane
	partOutside   = "out" // beyond the router
	partExternal  = "ext" // with VPCs or OpenStack: a host in the outside network of their gateways
	partOpenStack = "os"  // with OpenStack: its programs
	uplink        = "eth0"

	underlayBridge = "ul0" // in the underlay's namespace
)

// bring starts everything. If Kubernetes' programs must be built, that runs concurrently with steps that do not need them.
func (s *Supervisor) bring(ctx context.Context) error {
	s.mu.Lock()
	s.datapath = chooseDatapath(s.lab.Datapath)
	s.mu.Unlock()
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
			if err := s.step("namespaces and links", func() error { return s.bringGround(ctx) }); err != nil {
				return err
			}
			err := together(ctx,
				func(ctx context.Context) error { return s.bringSwitches(ctx) },
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
func (s *Supervisor) buildPrograms(ctx context.Context) (string, error) {
	for _, program := range missingFlannel(s.lab) {
		if err := s.step("build "+program.String(), func() error {
			return program.Ensure(ctx, filepath.Dir(s.lab.KubernetesModule), s.group.Run)
		}); err != nil {
			return "", err
		}
	}
	return kubebuild.Ensure(ctx, kubebuild.Config{
		Module: s.lab.KubernetesModule, Kubelets: s.lab.Runtime == plan.RuntimeKubelet, Proxy: s.lab.KubeProxy,
		Run: s.group.Run,
		Step: func(name string, f func() error) error {
			return s.step(name, f)
		},
	})
}

func (s *Supervisor) bringGround(ctx context.Context) error {
	parts := []func(context.Context) error{
		func(ctx context.Context) error { return s.newSpace(ctx, partUnderlay, ground.Hold{Forward: true}) },
		func(ctx context.Context) error { return s.newSpace(ctx, partControl, ground.Hold{}) },
		func(ctx context.Context) error { return s.newSpace(ctx, partOutside, ground.Hold{}) },
	}
	if s.lab.HasExternal() {
		parts = append(parts, func(ctx context.Context) error { return s.newSpace(ctx, partExternal, ground.Hold{}) })
	}
	if s.lab.OpenStack != "" { // Octavia's sockets need a /run of their own
		parts = append(parts, func(ctx context.Context) error {
			return s.newSpace(ctx, partOpenStack, ground.Hold{RunDir: s.lab.RunPath("os-run")})
		})
	}
	for _, n := range s.lab.AllNodes() {
		parts = append(parts, func(ctx context.Context) error {
			return s.newSpace(ctx, n.Name, ground.Hold{RunDir: n.RunDir, Binds: n.Binds(), Forward: true, Forward6: s.lab.DualStack})
		})
	}
	if err := together(ctx, parts...); err != nil {
		return err
	}
	if err := s.connect(); err != nil {
		return err
	}
	if s.lab.OpenStack != "" {
		if err := s.connectCloud(ctx); err != nil {
			return err
		}
	}
	if s.lab.HasExternal() {
		return s.connectExternal()
	}
	return nil
}

func (s *Supervisor) newSpace(ctx context.Context, part string, h ground.Hold) error {
	if h.RunDir != "" {
		if err := os.MkdirAll(h.RunDir, 0o755); err != nil {
			return fmt.Errorf("make the node's /run: %w", err)
		}
	}
	sp, err := ground.NewSpace(ctx, s.group, s.self, s.lab.Namespace(part), h)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.spaces[part] = sp
	return nil
}

// connect makes the links that are not a node's: the bridge, the control plane with its link to the machine, and the outside.
func (s *Supervisor) connect() error {
	l := s.lab
	ul, cp, out := s.space(partUnderlay), s.space(partControl), s.space(partOutside)
	const bridge = underlayBridge
	bits := l.Underlay.Bits()
	if err := ul.Bridge(bridge, netip.PrefixFrom(l.Router, bits), l.MTU); err != nil {
		return err
	}
	err := ground.Connect(l.MTU,
		ground.End{Space: &ul, Name: partControl, Bridge: bridge},
		ground.End{Space: &cp, Name: uplink, Addr: netip.PrefixFrom(l.ControlIP, bits)})
	if err != nil {
		return err
	}
	if err := cp.Route(netip.Prefix{}, l.Router); err != nil {
		return err
	}
	hostBits := s.entry.HostNet.Bits()
	err = ground.Connect(l.MTU,
		ground.End{Name: l.HostLink, Addr: netip.PrefixFrom(s.entry.HostIP(), hostBits)},
		ground.End{Space: &cp, Name: "host0", Addr: netip.PrefixFrom(s.entry.APIHost(), hostBits)})
	if err != nil {
		return err
	}
	err = ground.Connect(l.MTU,
		ground.End{Space: &ul, Name: partOutside, Addr: netip.PrefixFrom(l.Outside.Gateway, l.Outside.Net.Bits())},
		ground.End{Space: &out, Name: uplink, Addr: netip.PrefixFrom(l.Outside.Host, l.Outside.Net.Bits())})
	if err != nil {
		return err
	}
	// Outside has a route back to nodes only, so pods can reach it only masqueraded.
	return out.Route(l.Underlay, l.Outside.Gateway)
}

func (s *Supervisor) bringSwitches(ctx context.Context) error {
	parts := []func(context.Context) error{func(ctx context.Context) error {
		return s.group.Start(ctx, process.Program{Name: "reporter", Argv: s.space(partOutside).Enter(
			s.self, "reporter", s.lab.Outside.Reporter().String())})
	}}
	if s.lab.HasExternal() {
		parts = append(parts, s.bringExternal)
	}
	for _, n := range s.lab.AllNodes() {
		if s.lab.NoSwitch || s.lab.Network == plan.NetworkFlannel {
			parts = append(parts, func(ctx context.Context) error {
				return s.step("address of "+n.Name, func() error { return s.bringAddress(ctx, n) })
			})
			continue
		}
		parts = append(parts, func(ctx context.Context) error {
			return s.step("switch of "+n.Name, func() error { return s.bringSwitch(ctx, n) })
		})
	}
	return together(ctx, parts...)
}

// bringSwitch starts a node's switch and sets the node's address: with the userspace datapath on a bridge with eth0 as a port, with the
// kernel's on eth0 itself.
func (s *Supervisor) bringSwitch(ctx context.Context, n plan.Node) error {
	ctx, cancel := context.WithTimeout(ctx, stepLimit)
	defer cancel()
	sp, ul := s.space(n.Name), s.space(partUnderlay)
	sw := ovsnode.Switch{Node: n, Space: sp, Group: s.group}
	// The tunnels of neutron-openvswitch-agent have a local_ip, and the userspace datapath sends only from a local_ip for which it has a
	// local route. Only the kernel's routes include such (Open vSwitch 3.1, ovs_router_lookup); ovs/route/add makes none.
	if s.datapath == plan.DatapathNetdev && s.lab.OpenStack != plan.OpenStackOpenVSwitch {
		sw.Routes = &ovsnode.Routes{Underlay: s.lab.Underlay, Router: s.lab.Router}
	}
	if err := sw.Start(ctx); err != nil {
		return err
	}
	port := ground.End{Space: &sp, Name: uplink}
	keep := ground.Keep{Link: uplink, Addr: netip.PrefixFrom(n.IP, s.lab.Underlay.Bits()), Gateway: s.lab.Router}
	if s.datapath == plan.DatapathNetdev {
		if err := sw.Guard(ctx); err != nil {
			return err
		}
		port.Group, keep.Link = plan.LinkGroup, ovsnode.Phy
	} else {
		port.MAC = n.MAC
	}
	if err := ground.Connect(s.lab.MTU, ground.End{Space: &ul, Name: n.Name, Bridge: "ul0"}, port); err != nil {
		return err
	}
	if s.datapath == plan.DatapathNetdev {
		if err := sw.PhyBridge(ctx, uplink, s.lab.MTU); err != nil {
			return err
		}
	}
	if err := s.keepAddress(ctx, sp, keep); err != nil {
		return err
	}
	return sw.AwaitRoute(ctx)
}

// bringAddress sets the address of a node without a switch, on eth0 itself.
func (s *Supervisor) bringAddress(ctx context.Context, n plan.Node) error {
	ctx, cancel := context.WithTimeout(ctx, stepLimit)
	defer cancel()
	sp, ul := s.space(n.Name), s.space(partUnderlay)
	err := ground.Connect(s.lab.MTU, ground.End{Space: &ul, Name: n.Name, Bridge: "ul0"},
		ground.End{Space: &sp, Name: uplink, MAC: n.MAC})
	if err != nil {
		return err
	}
	return s.keepAddress(ctx, sp, ground.Keep{
		Link: uplink, Addr: netip.PrefixFrom(n.IP, s.lab.Underlay.Bits()), Addr6: s.lab.Address6(n), Gateway: s.lab.Router, Gateway6: s.lab.IPv6.Router,
	})
}

// keepAddress sets an address, and restores it whenever its link is made again.
func (s *Supervisor) keepAddress(ctx context.Context, sp ground.Space, keep ground.Keep) error {
	// The watch outlives the start, and ends with the group's programs.
	watch, stop := context.WithCancel(context.Background())
	go func() {
		<-s.down
		stop()
	}()
	if err := sp.KeepAddress(watch, keep, s.log); err != nil {
		return err
	}
	return sp.Await(ctx, keep)
}

func (s *Supervisor) bringCluster(ctx context.Context, bin string) error {
	ca, err := pki.New(s.lab.Path("pki"))
	if err != nil {
		return err
	}
	if err := os.MkdirAll(s.lab.Path("kubeconfig"), 0o700); err != nil {
		return fmt.Errorf("make the folder of kubeconfigs: %w", err)
	}
	s.plane = &controlplane.Plane{Lab: s.lab, Space: s.space(partControl), Bin: bin, HostAddr: s.entry.APIHost(), CA: ca}
	if err := s.plane.Credentials(); err != nil {
		return err
	}
	err = s.step("etcd and API server", func() error {
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
	return s.step("nodes in the cluster", func() error { return s.registerNodes(ctx) })
}

// installAPI installs Weft's resource definitions and the cluster network, if the manifests are known.
func (s *Supervisor) installAPI(ctx context.Context) error {
	crds := filepath.Join(s.lab.DeployDir, "crds")
	if s.lab.DeployDir == "" || !isDir(crds) {
		s.journal.add(report.Event{Step: "Weft's API", State: report.Done, Text: "no manifests in " + crds + ": not installed"})
		return nil
	}
	return s.step("Weft's API", func() error {
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
func (s *Supervisor) configureNetworks(ctx context.Context) error {
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

func (s *Supervisor) kubectl(ctx context.Context, stdin string, args ...string) (string, error) {
	argv := append([]string{"env", "NO_PROXY=*", filepath.Join(s.plane.Bin, "kubectl"), "--kubeconfig=" + s.lab.Kubeconfig()}, args...)
	return s.group.Run(ctx, stdin, argv...)
}

// bringPods starts the programs that run pods, and Weft.
func (s *Supervisor) bringPods(ctx context.Context) error {
	if s.lab.Runtime == plan.RuntimeKubelet {
		return s.bringKubelets(ctx)
	}
	if err := s.step("pod runtimes", func() error { return s.bringPodRuntimes(ctx) }); err != nil {
		return err
	}
	if s.lab.KubeProxy {
		if err := s.step("kube-proxy", func() error { return s.bringProxies(ctx) }); err != nil {
			return err
		}
	}
	if s.lab.VPC {
		if err := s.step("OVN", func() error { return s.bringOVN(ctx) }); err != nil {
			return err
		}
	}
	if s.lab.OpenStack != "" {
		if err := s.step("OpenStack", func() error { return s.bringOpenStack(ctx) }); err != nil {
			return err
		}
	}
	if s.lab.NoWeft {
		return nil
	}
	return s.step("Weft", func() error { return s.bringWeft(ctx) })
}

func isDir(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.IsDir()
}
