package agent

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"weft.dev/weft/internal/cni"
)

const (
	// CNIConfName is the file that tells the container runtime of Weft. Runtimes take the first name in order.
	CNIConfName = "10-weft.conflist"
	// confVersion is the specification's version in it: the newest that the runtimes in use read (containerd 1.6
	// reads no other).
	confVersion = "1.0.0"
	// pluginType is the name of the plugin's executable.
	pluginType = "weft"
)

// Socket is where an agent with that run directory answers the CNI plugin.
func Socket(runDir string) string { return filepath.Join(runDir, "cni", "cni.sock") }

// PortsNamespace is the path of the namespace of ports that stand ready, for an agent with that run directory.
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
	// Capabilities are what the runtime is to tell of a pod, in runtimeConfig.
	Capabilities map[string]bool `json:"capabilities,omitempty"`
}

// confMode is the mode of the runtime's configuration.
const confMode os.FileMode = 0o644

// writeConf writes the runtime's configuration, atomically and only if it is not there already. It is what tells the
// node that pods may come, so it is written last.
func writeConf(dir, socket, records, ports string) error {
	path := filepath.Join(dir, CNIConfName)
	data, err := confData(socket, records, ports)
	if err != nil || isThere(path, data, confMode) {
		return err
	}
	return writeAtomically(path, data, confMode)
}

// confData is the content of the runtime's configuration.
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

// isThere reports whether path is a file, and no link to one, with that content and mode.
func isThere(path string, data []byte, mode os.FileMode) bool {
	info, err := os.Lstat(path)
	if err != nil || info.Mode() != mode { // the type's bits are in it, and setuid
		return false
	}
	have, err := os.ReadFile(path)
	return err == nil && bytes.Equal(have, data)
}

// writeAtomically puts data in place of whatever is at path: a reader sees the old content or the new.
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

// InstallPlugin copies the plugin's executable to where the runtime looks for it: beside what is there, then in its
// place, so that a runtime never starts half a file. It is not setuid and nobody but its owner may write it.
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

// CopyFile copies a file with its permissions: beside what is there, then in its place.
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
