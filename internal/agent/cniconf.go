package agent

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"weft.dev/weft/internal/agent/engines"

	"weft.dev/weft/internal/agent/cniconf"
	"weft.dev/weft/internal/overlay"
	"weft.dev/weft/internal/steps"
)

// Socket returns the socket of an agent with this run directory, for the CNI plugin.
func Socket(runDir string) string { return filepath.Join(runDir, "cni", "cni.sock") }

// PortsNamespace returns the path of the namespace of pre-plugged ports, for an agent with this run directory.
func PortsNamespace(runDir string) string {
	return filepath.Join(filepath.Dir(Socket(runDir)), "ports")
}

// conf returns the runtime's configuration of the overlay.
func (a *agent) conf() *cniconf.File {
	return &cniconf.File{Dir: a.opts.CNIConfDir, Socket: a.socket, Records: a.records, Ports: PortsNamespace(a.opts.RunDir)}
}

// configure writes the runtime's configuration and the node's condition for the default network, if that is another one than the overlay,
// or if it becomes the overlay again.
func (n *networks) configure(ctx context.Context, e *engines.Engines) error {
	return steps.Keep(ctx, n.agent.opts.Log, n.changed, "the runtime's configuration", func() error {
		if n.decided() != nil {
			return nil //nolint:nilerr // pods could not be placed yet; what is decided wakes this
		}
		standard, _ := n.standard()
		if r := n.agent.running.Load(); standard == overlay.NetworkName && r != nil && r.network.Ready() == nil {
			return n.configureOverlay(ctx, e)
		}
		at := slices.IndexFunc(n.kinds, func(k *kind) bool { return k.Name == standard })
		if at < 0 || n.kinds[at].CNI.Content == nil {
			return nil // there is none, or it brings no configuration
		}
		if _, running, err := n.kinds[at].state(); !running || err != nil {
			return nil //nolint:nilerr // it wakes this when that is over
		}
		return n.configureKind(ctx, e, n.kinds[at])
	})
}

// configureKind writes a network's configuration as the node's.
func (n *networks) configureKind(ctx context.Context, e *engines.Engines, k *kind) error {
	data, err := k.CNI.Content()
	if err != nil {
		return fmt.Errorf("CNI configuration of network %s: %w", k.Name, err)
	}
	if path := filepath.Join(n.agent.opts.CNIConfDir, k.CNI.Name); !cniconf.IsThere(path, data) {
		if err := cniconf.WriteAtomically(path, data); err != nil {
			return err
		}
	}
	n.agent.configured.Store(false)
	if err := n.withdrawConf(k.CNI.Name); err != nil {
		return err
	}
	return n.agent.reportReadyNode(ctx, e.Kernel.Firewall.Warning())
}

// configureOverlay writes the overlay's configuration as the node's.
func (n *networks) configureOverlay(ctx context.Context, e *engines.Engines) error {
	a := n.agent
	if _, err := a.conf().Write(); err != nil {
		return err
	}
	a.configured.Store(true)
	if err := n.withdrawConf(cniconf.Name); err != nil {
		return err
	}
	return a.reportReadyNode(ctx, e.Kernel.Firewall.Warning())
}

// withdrawConf removes the configurations that the agent wrote for other networks, because a node has only one. A file of the same name
// with other content belongs to another program, and stays.
func (n *networks) withdrawConf(now string) error {
	a := n.agent
	mine, err := a.conf().Content()
	if err != nil {
		return err
	}
	written := map[string][]byte{cniconf.Name: mine}
	for _, k := range n.kinds {
		if k.CNI.Content == nil {
			continue
		}
		if data, err := k.CNI.Content(); err == nil {
			written[k.CNI.Name] = data
		}
	}
	for name, data := range written {
		path := filepath.Join(a.opts.CNIConfDir, name)
		if name == now || !cniconf.IsThere(path, data) {
			continue
		}
		if err := os.Remove(path); err != nil {
			return fmt.Errorf("CNI configuration of a network that is not the default: %w", err)
		}
	}
	return nil
}
