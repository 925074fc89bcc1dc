// Package cniconf writes the container runtime's configuration and the plugin that it starts, and finds configurations that others left there.
package cniconf

import (
	"encoding/json"
	"fmt"
	"os"

	"weft.dev/weft/internal/cni"
)

const (
	// Name is the file that configures Weft in the container runtime. Runtimes take the first name in alphabetical order.
	Name = "10-weft.conflist"
	// confVersion is the version of the CNI specification in that file: the newest that the runtimes in use can read (containerd 1.6 reads no
	// newer one).
	confVersion = "1.0.0"
	// pluginType is the name of the plugin's executable.
	pluginType = "weft"
)

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

// Mode is the mode of the runtime's configuration.
const Mode os.FileMode = 0o644

// File is the runtime's configuration of the overlay. The plugin's default places are left out of it.
type File struct {
	// Dir is the runtime's directory of network configurations.
	Dir string
	// Socket is the agent's socket, Records the folder of its attachment records, and Ports the namespace of pre-plugged ports.
	Socket, Records, Ports string
}

// Content returns the content of the file.
func (f *File) Content() ([]byte, error) {
	plugin := pluginConf{Type: pluginType, Ports: f.Ports, Capabilities: map[string]bool{"portMappings": true, "bandwidth": true, "io.kubernetes.cri.pod-annotations": true}}
	if f.Socket != cni.DefaultSocket {
		plugin.Socket = f.Socket
	}
	if f.Records != cni.DefaultRecords {
		plugin.Records = f.Records
	}
	data, err := json.MarshalIndent(conflist{CNIVersion: confVersion, Name: "weft", Plugins: []pluginConf{plugin}}, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("CNI configuration: %w", err)
	}
	return append(data, '\n'), nil
}

// IsThere reports whether path is a regular file (not a link) with this content and the mode of a configuration.
func IsThere(path string, data []byte) bool { return isThere(path, data, Mode) }

// Write writes a configuration, unless it is already there, and reports whether it was not. A reader sees the old content or the new. With
// this file the runtime accepts pods, so it is written last.
func Write(path string, data []byte) (written bool, err error) {
	if IsThere(path, data) {
		return false, nil
	}
	if err := writeAtomically(path, data, Mode); err != nil {
		return false, err
	}
	return true, nil
}
