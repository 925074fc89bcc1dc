package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/overlay"
	"weft.dev/weft/internal/steps"
)

const (
	// CNIConfName is the file that configures Weft in the container runtime. Runtimes take the first name in alphabetical order.
	CNIConfName = "10-weft.conflist"
	// confVersion is the version of the CNI specification in that file: the newest that the runtimes in use can read (containerd 1.6 reads no
	// newer one).
	confVersion = "1.0.0"
	// pluginType is the name of the plugin's executable.
	pluginType = "weft"
)

// Socket returns the socket of an agent with this run directory, for the CNI plugin.
func Socket(runDir string) string { return filepath.Join(runDir, "cni", "cni.sock") }

// PortsNamespace returns the path of the namespace of pre-plugged ports, for an agent with this run directory.
func PortsNamespace(runDir string) string {
	return filepath.Join(filepath.Dir(Socket(runDir)), "ports")
}

// conflist is a CNI network configuration list.
type conflist struct {
	CNIVersion string       `json:"cniVersion"`
	Name       string       `json:"name"`
	Plugins    []pluginConf `json:"plugins"`
}

type pluginConf struct {
	Type    string `json:"type"`
	Socket  string `json:"socket,omitempty"`
	Records string `json:"records,omitempty"`
	Ports   string `json:"ports,omitempty"`
	// Capabilities are the properties of a pod that the runtime passes in runtimeConfig.
	Capabilities map[string]bool `json:"capabilities,omitempty"`
}

// confMode is the mode of the runtime's configuration.
const confMode os.FileMode = 0o644

// writeConf writes the runtime's configuration atomically, unless the file is already correct. With this file the runtime accepts pods, so
// it is written last.
func writeConf(dir, socket, records, ports string) error {
	path := filepath.Join(dir, CNIConfName)
	data, err := confData(socket, records, ports)
	if err != nil || isThere(path, data, confMode) {
		return err
	}
	return writeAtomically(path, data, confMode)
}

// confData returns the content of the runtime's configuration.
func confData(socket, records, ports string) ([]byte, error) {
	plugin := pluginConf{Type: pluginType, Ports: ports, Capabilities: map[string]bool{"portMappings": true, "bandwidth": true, "io.kubernetes.cri.pod-annotations": true}}
	if socket != cni.DefaultSocket {
		plugin.Socket = socket
	}
	if records != cni.DefaultRecords {
		plugin.Records = records
	}
	data, err := json.MarshalIndent(conflist{CNIVersion: confVersion, Name: "weft", Plugins: []pluginConf{plugin}}, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("CNI configuration: %w", err)
	}
	return append(data, '\n'), nil
}

// isThere reports whether path is a regular file (not a link) with this content and mode.
func isThere(path string, data []byte, mode os.FileMode) bool {
	info, err := os.Lstat(path)
	if err != nil || info.Mode() != mode { // the mode includes the file type and setuid
		return false
	}
	have, err := os.ReadFile(path)
	return err == nil && bytes.Equal(have, data)
}

// writeAtomically replaces whatever is at path with data. A reader sees the old content or the new.
func writeAtomically(path string, data []byte, mode os.FileMode) (err error) {
	file, err := os.CreateTemp(filepath.Dir(path), ".weft-*")
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s: %w", path, errors.Join(err, os.Remove(file.Name())))
		}
	}()
	_, err = file.Write(data)
	if err = errors.Join(err, file.Chmod(mode), file.Sync(), file.Close()); err != nil {
		return err
	}
	return os.Rename(file.Name(), path)
}

// InstallPlugin copies the plugin's executable to the runtime's plugin directory. It writes a new file and renames it, so that a runtime
// never starts an incomplete file. The file is not setuid, and only its owner can write it.
func InstallPlugin(from, to string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return fmt.Errorf("installing the CNI plugin: %w", err)
	}
	const mode = 0o755
	if isThere(to, data, mode) {
		return nil
	}
	if err := writeAtomically(to, data, mode); err != nil {
		return fmt.Errorf("installing the CNI plugin: %w", err)
	}
	return nil
}

// CopyFile copies a file with its permissions. It writes a new file and renames it.
func CopyFile(from, to string) error {
	info, err := os.Stat(from)
	if err != nil {
		return fmt.Errorf("copying a file: %w", err)
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("copying a file: %s is not a regular file", from)
	}
	data, err := os.ReadFile(from)
	if err != nil {
		return fmt.Errorf("copying a file: %w", err)
	}
	if into, err := os.Stat(to); err == nil && into.IsDir() {
		to = filepath.Join(to, filepath.Base(from))
	}
	if err := writeAtomically(to, data, info.Mode().Perm()); err != nil {
		return fmt.Errorf("copying a file: %w", err)
	}
	return nil
}

// configure writes the runtime's configuration and the node's condition for the default network, if that is another one than the overlay,
// or if it becomes the overlay again.
func (n *networks) configure(ctx context.Context, e *engines) error {
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
func (n *networks) configureKind(ctx context.Context, e *engines, k *kind) error {
	data, err := k.CNI.Content()
	if err != nil {
		return fmt.Errorf("CNI configuration of network %s: %w", k.Name, err)
	}
	if path := filepath.Join(n.agent.opts.CNIConfDir, k.CNI.Name); !isThere(path, data, confMode) {
		if err := writeAtomically(path, data, confMode); err != nil {
			return err
		}
	}
	n.agent.configured.Store(false)
	if err := n.withdrawConf(k.CNI.Name); err != nil {
		return err
	}
	return n.agent.reportReadyNode(ctx, e.firewall.warning())
}

// configureOverlay writes the overlay's configuration as the node's.
func (n *networks) configureOverlay(ctx context.Context, e *engines) error {
	a := n.agent
	if err := writeConf(a.opts.CNIConfDir, a.socket, a.records, PortsNamespace(a.opts.RunDir)); err != nil {
		return err
	}
	a.configured.Store(true)
	if err := n.withdrawConf(CNIConfName); err != nil {
		return err
	}
	return a.reportReadyNode(ctx, e.firewall.warning())
}

// withdrawConf removes the configurations that the agent wrote for other networks, because a node has only one. A file of the same name
// with other content belongs to another program, and stays.
func (n *networks) withdrawConf(now string) error {
	a := n.agent
	mine, err := confData(a.socket, a.records, PortsNamespace(a.opts.RunDir))
	if err != nil {
		return err
	}
	written := map[string][]byte{CNIConfName: mine}
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
		if name == now || !isThere(path, data, confMode) {
			continue
		}
		if err := os.Remove(path); err != nil {
			return fmt.Errorf("CNI configuration of a network that is not the default: %w", err)
		}
	}
	return nil
}
