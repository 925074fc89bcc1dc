package supervisor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sync/errgroup"

	"weft.dev/weft/lab/controlplane"
	"weft.dev/weft/lab/kubenode"
	"weft.dev/weft/lab/machine"
	"weft.dev/weft/lab/plan"
	"weft.dev/weft/lab/podruntime"
	"weft.dev/weft/lab/process"
)

// podRuntimes starts what runs pods and Services on nodes without a kubelet.
type podRuntimes struct {
	lab    plan.Lab
	self   string // the running program
	group  *process.Group
	spaces *spaces
	plane  *controlplane.Plane
}

// start starts the pod runtimes on nodes without a kubelet.
func (r podRuntimes) start(ctx context.Context) error {
	var g errgroup.Group
	for _, n := range r.lab.AllNodes() {
		if err := installPlugin(r.lab, n); err != nil {
			return err
		}
		sock := filepath.Join(n.RunDir, filepath.Base(podruntime.Socket))
		g.Go(func() error {
			return r.group.Start(ctx, process.Program{
				Name: n.Name + "/pods", Argv: r.spaces.of(n.Name).Enter(r.self, "pods"),
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

// startProxies starts kube-proxy on nodes without a kubelet.
func (r podRuntimes) startProxies(ctx context.Context) error {
	for _, n := range r.lab.AllNodes() {
		p, err := kubenode.Node{Node: n, Space: r.spaces.of(n.Name), Group: r.group, Plane: r.plane}.Proxy()
		if err != nil {
			return err
		}
		if err := r.group.Start(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

// installPlugin installs the CNI plugin as the agent's init container would.
func installPlugin(l plan.Lab, n plan.Node) error {
	raw, err := os.ReadFile(filepath.Join(l.WeftBin, "weft-cni"))
	if errors.Is(err, os.ErrNotExist) && l.NoWeft {
		return nil
	}
	if err != nil {
		return fmt.Errorf("install the CNI plugin on %s: %w (build it: go build -o BIN ./cmd/...)", n.Name, err)
	}
	if err := machine.WriteFile(filepath.Join(n.Dir, "root", "opt/cni/bin", "weft"), raw, 0o755); err != nil || !l.Network.Flannel() {
		return err
	}
	return installFlannelPlugin(l, n)
}
