package supervisor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sync/errgroup"

	"weft.dev/weft/lab/controlplane"
	"weft.dev/weft/lab/kubenode"
	"weft.dev/weft/lab/machine"
	"weft.dev/weft/lab/plan"
	"weft.dev/weft/lab/podruntime"
	"weft.dev/weft/lab/process"
)

// bringPodRuntimes starts the pod runtimes on nodes without a kubelet.
func (s *start) bringPodRuntimes(ctx context.Context) error {
	var g errgroup.Group
	for _, n := range s.lab.AllNodes() {
		if err := s.installPlugin(n); err != nil {
			return err
		}
		sock := filepath.Join(n.RunDir, filepath.Base(podruntime.Socket))
		g.Go(func() error {
			return s.group.Start(ctx, process.Program{
				Name: n.Name + "/pods", Argv: s.spaces.of(n.Name).Enter(s.self, "pods"),
				Ready: func(ctx context.Context) error {
					c, err := new(net.Dialer).DialContext(ctx, "unix", sock)
					if err != nil {
						return fmt.Errorf("reach the pod runtime of %s: %w", n.Name, err)
					}
					return c.Close()
				},
			})
		})
	}
	return g.Wait()
}

// bringProxies starts kube-proxy on nodes without a kubelet.
func (s *start) bringProxies(ctx context.Context) error {
	for _, n := range s.lab.AllNodes() {
		p, err := kubenode.Node{Node: n, Space: s.spaces.of(n.Name), Group: s.group, Plane: s.plane}.Proxy()
		if err != nil {
			return err
		}
		if err := s.group.Start(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

// installPlugin installs the CNI plugin as the agent's init container would.
func (s *start) installPlugin(n plan.Node) error {
	raw, err := os.ReadFile(filepath.Join(s.lab.WeftBin, "weft-cni"))
	if errors.Is(err, os.ErrNotExist) && s.lab.NoWeft {
		return nil
	}
	if err != nil {
		return fmt.Errorf("install the CNI plugin on %s: %w (build it: go build -o BIN ./cmd/...)", n.Name, err)
	}
	if err := machine.WriteFile(filepath.Join(n.Dir, "root", "opt/cni/bin", "weft"), raw, 0o755); err != nil || !s.lab.Network.Flannel() {
		return err
	}
	return installFlannelPlugin(s.lab, n)
}

// bringWeft runs agent and controller as plain processes, and waits until every node is ready.
func (s *start) bringWeft(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, stepLimit)
	defer cancel()
	if s.lab.FlannelStore == plan.StoreEtcd {
		return s.flannel().startDaemons(ctx)
	}
	weft, kubeconfig := filepath.Join(s.lab.WeftBin, "weft"), s.plane.KubeconfigOf(controlplane.Weft)
	if _, err := os.Stat(weft); err != nil {
		return fmt.Errorf("find Weft: %w (build it: go build -o BIN ./cmd/...; or use --no-weft)", err)
	}
	err := s.group.Start(ctx, process.Program{
		Name: "weft-controller",
		Argv: s.spaces.of(partControl).Enter(append([]string{weft, "controller", "--kubeconfig=" + kubeconfig, "--namespace=kube-system"}, slices.Concat(s.vpcController(), s.cloudController())...)...),
	})
	if err != nil {
		return err
	}
	var g errgroup.Group
	for _, n := range s.lab.AllNodes() {
		if err := s.nameServers(n); err != nil {
			return err
		}
		if s.lab.RunsFlanneld(n.Name) {
			g.Go(func() error { return s.flannel().startOriginal(ctx, n) })
			continue
		}
		g.Go(func() error {
			return s.group.Start(ctx, process.Program{
				Name: n.Name + "/weft-agent",
				Argv: s.spaces.of(n.Name).Enter(append([]string{
					weft, "agent", "--kubeconfig=" + kubeconfig, "--node-name=" + n.Name, "--datapath=" + string(s.lab.Datapath), "--profiling",
					"--resolv-conf=" + resolvConf,
				}, slices.Concat(s.vpcAgent(), s.cloudAgent(), flannelAgent(s.lab))...)...),
				Env: []string{"NODE_NAME=" + n.Name}, Eager: true,
				// The agent writes the network configuration last, when the node can serve.
				Ready: func(context.Context) error { return hasConf(n) },
			})
		})
	}
	return g.Wait()
}

// resolvConf is the file with a node's name servers.
const resolvConf = "/run/resolv.conf"

// nameServers sets a node's name server beyond the router. It answers only after a test starts one there.
func (s *start) nameServers(n plan.Node) error {
	text := "nameserver " + s.lab.Outside.Host.String() + "\noptions timeout:1 attempts:2\n"
	return machine.WriteFile(filepath.Join(n.RunDir, filepath.Base(resolvConf)), []byte(text), 0o644)
}

var errNoConf = errors.New("no network configuration in /etc/cni/net.d yet")

func hasConf(n plan.Node) error {
	found, err := filepath.Glob(filepath.Join(n.Dir, "root", "etc/cni/net.d", "*.conf*"))
	if err != nil {
		return fmt.Errorf("look for the network configuration of %s: %w", n.Name, err)
	}
	if len(found) == 0 {
		return fmt.Errorf("node %s: %w", n.Name, errNoConf)
	}
	return nil
}
