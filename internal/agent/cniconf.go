package agent

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"weft.dev/weft/internal/agent/engines"
	"weft.dev/weft/internal/network"

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
func (a *agent) configure(ctx context.Context, e *engines.Engines) error {
	return steps.Keep(ctx, a.opts.Log, a.networks.Changed(), "the runtime's configuration", func() error {
		if a.networks.Decided() != nil {
			return nil //nolint:nilerr // pods could not be placed yet; what is decided wakes this
		}
		standard, _ := a.networks.Default()
		if r := a.running.Load(); standard == overlay.NetworkName && r != nil && r.network.Ready() == nil {
			return a.configureOverlay(ctx, e)
		}
		conf, brings := a.networks.Configurations()[standard]
		if !brings || !a.networks.CanServe(standard) {
			return nil // there is none, it brings no configuration, or it wakes this once it can serve
		}
		return a.configureKind(ctx, e, standard, conf)
	})
}

// configureKind writes a network's configuration as the node's.
func (a *agent) configureKind(ctx context.Context, e *engines.Engines, name string, conf network.Conflist) error {
	data, err := conf.Content()
	if err != nil {
		return fmt.Errorf("CNI configuration of network %s: %w", name, err)
	}
	if path := filepath.Join(a.opts.CNIConfDir, conf.Name); !cniconf.IsThere(path, data) {
		if err := cniconf.WriteAtomically(path, data); err != nil {
			return err
		}
	}
	a.configured.Store(false)
	if err := a.withdrawConf(conf.Name); err != nil {
		return err
	}
	return a.reportReadyNode(ctx, e.Kernel.Firewall.Warning())
}

// configureOverlay writes the overlay's configuration as the node's.
func (a *agent) configureOverlay(ctx context.Context, e *engines.Engines) error {
	if _, err := a.conf().Write(); err != nil {
		return err
	}
	a.configured.Store(true)
	if err := a.withdrawConf(cniconf.Name); err != nil {
		return err
	}
	return a.reportReadyNode(ctx, e.Kernel.Firewall.Warning())
}

// withdrawConf removes the configurations that the agent wrote for other networks, because a node has only one. A file of the same name
// with other content belongs to another program, and stays.
func (a *agent) withdrawConf(now string) error {
	mine, err := a.conf().Content()
	if err != nil {
		return err
	}
	written := map[string][]byte{cniconf.Name: mine}
	for _, conf := range a.networks.Configurations() {
		if data, err := conf.Content(); err == nil {
			written[conf.Name] = data
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
