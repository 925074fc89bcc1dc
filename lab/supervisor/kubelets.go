package supervisor

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"weft.dev/weft/lab/controlplane"
	"weft.dev/weft/lab/kubenode"
	"weft.dev/weft/lab/loopback"
	"weft.dev/weft/lab/plan"
	"weft.dev/weft/lab/process"
)

// kubelets starts containerd, kubelet and kube-proxy on nodes.
type kubelets struct {
	lab     plan.Lab
	self    string // the running program
	group   *process.Group
	spaces  *spaces
	plane   *controlplane.Plane
	kubectl kubectl
}

// start starts the programs of a node, whose runtime loads the archives of images, and waits until it is registered.
func (k kubelets) start(ctx context.Context, node plan.Node, archives []string) error {
	n := kubenode.Node{Node: node, Space: k.spaces.of(node.Name), Group: k.group, Plane: k.plane}
	if err := k.installLoopback(node); err != nil {
		return err
	}
	if k.lab.Network.Flannel() {
		// flannel's plugin executes bridge and host-local; with Weft's agent, host ports are portmap's task.
		if err := installBorrowed(node, "portmap", "bridge", "host-local"); err != nil {
			return err
		}
	}
	containerd, err := n.Containerd()
	if err != nil {
		return err
	}
	if err := k.group.Start(ctx, containerd); err != nil {
		return err
	}
	for _, a := range archives {
		if err := n.Import(ctx, a); err != nil {
			return err
		}
	}
	for _, program := range []func() (process.Program, error){n.Kubelet, n.Proxy} {
		p, err := program()
		if err != nil {
			return err
		}
		if err := k.group.Start(ctx, p); err != nil {
			return err
		}
	}
	return k.awaitNode(ctx, node.Name)
}

// installLoopback installs this program as container runtimes' loopback plugin; under that name, it acts as the plugin.
func (k kubelets) installLoopback(n plan.Node) error {
	dir := filepath.Join(n.Dir, "root", "opt/cni/bin")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("install the loopback plugin on %s: %w", n.Name, err)
	}
	if err := os.Symlink(k.self, filepath.Join(dir, loopback.Name)); err != nil {
		return fmt.Errorf("install the loopback plugin on %s: %w", n.Name, err)
	}
	return nil
}

// awaitNode waits until the kubelet has registered its node.
func (k kubelets) awaitNode(ctx context.Context, name string) error {
	for {
		_, err := k.kubectl.run(ctx, "", "get", "node", name)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("node %s does not register: %w (last: %w)", name, ctx.Err(), err)
		case <-time.After(300 * time.Millisecond):
		}
	}
}
