package supervisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sync/errgroup"

	"weft.dev/weft/lab/machine"
	"weft.dev/weft/lab/plan"
	"weft.dev/weft/lab/process"
)

// weftProcesses starts Weft's agents and controller, or flannel's daemons, as plain processes.
type weftProcesses struct {
	lab             plan.Lab
	group           *process.Group
	spaces          *spaces
	flannel         flannel
	kubeconfig      string   // of agents and controller
	controllerFlags []string // of the lab's networks
	agentFlags      []string // of the lab's networks
}

// start runs agent and controller as plain processes, and waits until every node is ready.
func (w weftProcesses) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, stepLimit)
	defer cancel()
	if w.lab.FlannelStore == plan.StoreEtcd {
		return w.flannel.startDaemons(ctx)
	}
	weft := filepath.Join(w.lab.WeftBin, "weft")
	if _, err := os.Stat(weft); err != nil {
		return fmt.Errorf("find Weft: %w (build it: go build -o BIN ./cmd/...; or use --no-weft)", err)
	}
	err := w.group.Start(ctx, process.Program{
		Name: "weft-controller",
		Argv: w.spaces.of(partControl).Enter(append([]string{weft, "controller", "--kubeconfig=" + w.kubeconfig, "--namespace=kube-system"}, w.controllerFlags...)...),
	})
	if err != nil {
		return err
	}
	var g errgroup.Group
	for _, n := range w.lab.AllNodes() {
		if err := w.nameServers(n); err != nil {
			return err
		}
		if w.lab.RunsFlanneld(n.Name) {
			g.Go(func() error { return w.flannel.startOriginal(ctx, n) })
			continue
		}
		g.Go(func() error {
			return w.group.Start(ctx, process.Program{
				Name: n.Name + "/weft-agent",
				Argv: w.spaces.of(n.Name).Enter(append([]string{
					weft, "agent", "--kubeconfig=" + w.kubeconfig, "--node-name=" + n.Name, "--datapath=" + string(w.lab.Datapath), "--profiling",
					"--resolv-conf=" + resolvConf,
				}, w.agentFlags...)...),
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
func (w weftProcesses) nameServers(n plan.Node) error {
	text := "nameserver " + w.lab.Outside.Host.String() + "\noptions timeout:1 attempts:2\n"
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
