package cni

import (
	"bytes"
	"encoding/json"
	"net"
	"net/netip"
	"path"
	"strings"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
)

const (
	// PluginType is the "type" of Weft's plugin in a network configuration, and so the file name of the executable in the runtime's plugin
	// directory.
	PluginType = "weft"
	// DefaultSocket is the agent's socket if the configuration has none.
	DefaultSocket = "/run/weft/cni/cni.sock"
	// DefaultRecords is the directory of the agent's attachment records if the configuration has none.
	DefaultRecords = "/var/lib/weft/attachments"

	// maxSocketPath is the maximum length of a unix socket's path, which must be NUL-terminated (sun_path, unix(7): 108 bytes).
	maxSocketPath = 107
)

// NetConf is the network configuration that a runtime passes to the plugin. Fields that are not here are ignored, as the specification
// requires: a configuration may have fields of other plugins.
type NetConf struct {
	// CNIVersion is the version of the specification for the answer.
	CNIVersion string `json:"cniVersion"`
	// Name is the name of the network, the same in the whole cluster.
	Name string `json:"name"`
	// Type is the name of the plugin's executable. It is informative: the runtime has used it already.
	Type string `json:"type"`
	// Socket is the path of the agent's socket; DefaultSocket if empty.
	Socket string `json:"socket,omitempty"`
	// Records is the directory of the agent's attachment records; DefaultRecords if empty.
	Records string `json:"records,omitempty"`
	// Ports is the path for the namespace of pre-plugged ports; empty: none. The plugin makes it, because a mount that an agent makes in its
	// container is not visible on the node.
	Ports string `json:"ports,omitempty"`
	// RuntimeConfig has the runtime's values for the capabilities that the configuration declares.
	RuntimeConfig RuntimeConfig `json:"runtimeConfig,omitzero"`
	// RawPrevResult is the result of the plugin before this one (ADD), or of this attachment's ADD (CHECK, DEL), in the version of
	// CNIVersion; empty if there is none. See PrevResult.
	RawPrevResult json.RawMessage `json:"prevResult,omitempty"`
	// ValidAttachments, for GC, are the attachments to keep. Nil means that the key is missing, which differs from an empty list or null:
	// these keep nothing.
	ValidAttachments []Attachment `json:"cni.dev/valid-attachments,omitempty"`
}

// RuntimeConfig has the capabilities that Weft supports (CONVENTIONS.md of the CNI project).
type RuntimeConfig struct {
	// IPs are the requested addresses, with or without a prefix length (capability "ips").
	IPs []string `json:"ips,omitempty"`
	// MAC is the requested hardware address (capability "mac").
	MAC string `json:"mac,omitempty"`
	// PortMappings are the ports of the node that are forwarded to the pod (capability "portMappings"). ParsePortMappings parses them for an
	// ADD only, so that a pod whose mappings are refused can still be deleted.
	PortMappings []PortMapping `json:"portMappings,omitempty"`
	// Bandwidth limits what the pod receives and sends (capability "bandwidth"). ParseBandwidth parses it for an ADD only, as above.
	Bandwidth json.RawMessage `json:"bandwidth,omitempty"`
	// PodAnnotations are the pod's annotations (capability "io.kubernetes.cri.pod-annotations" of containerd and CRI-O).
	PodAnnotations map[string]string `json:"io.kubernetes.cri.pod-annotations,omitempty"`
}

// Attachment identifies an attachment: an interface of a container.
type Attachment struct {
	ContainerID string `json:"containerID"`
	IfName      string `json:"ifname"`
}

// ParseNetConf parses a network configuration, sets the defaults and checks every field. Invalid or truncated JSON gives CodeDecode. A
// field with an invalid value gives CodeInvalidConfig and is named.
func ParseNetConf(data []byte) (*NetConf, error) {
	conf := &NetConf{}
	if err := json.Unmarshal(data, conf); err != nil {
		return nil, Errorf(CodeDecode, "network configuration: %w", err)
	}
	if isNull(conf.RawPrevResult) {
		conf.RawPrevResult = nil
	}
	if err := conf.replaceNullAttachments(data); err != nil {
		return nil, err
	}
	if conf.Socket == "" {
		conf.Socket = DefaultSocket
	}
	if conf.Records == "" {
		conf.Records = DefaultRecords
	}
	if err := conf.validate(); err != nil {
		return nil, err
	}
	return conf, nil
}

// replaceNullAttachments makes a valid-attachments of null the empty list: the CNI library writes null when a runtime collects garbage on a
// node without attachments. Only a missing key means that there is no list.
func (c *NetConf) replaceNullAttachments(data []byte) error {
	if c.ValidAttachments != nil {
		return nil
	}
	var raw struct {
		ValidAttachments json.RawMessage `json:"cni.dev/valid-attachments"`
	}
	if err := json.Unmarshal(data, &raw); err != nil {
		return Errorf(CodeDecode, "network configuration: %w", err)
	}
	if isNull(raw.ValidAttachments) {
		c.ValidAttachments = []Attachment{}
	}
	return nil
}

func isNull(raw json.RawMessage) bool { return bytes.Equal(bytes.TrimSpace(raw), []byte("null")) }

func (c *NetConf) validate() error {
	switch {
	case c.Name == "":
		return Errorf(CodeInvalidConfig, "network configuration: name is missing")
	case !IsIdentifier(c.Name):
		return Errorf(CodeInvalidConfig, "network configuration: name %q is not valid", c.Name)
	case !isCleanPath(c.Socket) || len(c.Socket) > maxSocketPath:
		return Errorf(CodeInvalidConfig, "network configuration: socket %q is not an absolute path of at most %d bytes",
			c.Socket, maxSocketPath)
	case c.Ports != "" && !isCleanPath(c.Ports):
		return Errorf(CodeInvalidConfig, "network configuration: ports %q is not an absolute path", c.Ports)
	case !isCleanPath(c.Records):
		return Errorf(CodeInvalidConfig, "network configuration: records %q is not an absolute path", c.Records)
	}
	for _, ip := range c.RuntimeConfig.IPs {
		if _, err := ParseAddress(ip); err != nil {
			return Errorf(CodeInvalidConfig, "network configuration: runtimeConfig.ips: %w", err)
		}
	}
	if mac := c.RuntimeConfig.MAC; mac != "" {
		if _, err := net.ParseMAC(mac); err != nil {
			return Errorf(CodeInvalidConfig, "network configuration: runtimeConfig.mac: %w", err)
		}
	}
	for _, valid := range c.ValidAttachments {
		if !isContainerID(valid.ContainerID) || !isInterfaceName(valid.IfName) {
			return Errorf(CodeInvalidConfig, "network configuration: cni.dev/valid-attachments: %q of %q is not valid",
				valid.IfName, valid.ContainerID)
		}
	}
	return nil
}

// ParseAddress parses an address of RuntimeConfig.IPs. An address without a prefix length gets that of a single address.
func ParseAddress(s string) (netip.Prefix, error) {
	if strings.Contains(s, "/") {
		return netip.ParsePrefix(s)
	}
	addr, err := netip.ParseAddr(s)
	if err != nil {
		return netip.Prefix{}, err
	}
	return netip.PrefixFrom(addr.WithZone(""), addr.BitLen()), nil
}

// PrevResult returns the result that the runtime passed, in the newest form; nil if it passed none.
func (c *NetConf) PrevResult() (*types100.Result, error) {
	if len(c.RawPrevResult) == 0 {
		return nil, nil //nolint:nilnil // No result is an answer here.
	}
	result, err := version.NewResult(c.CNIVersion, c.prevResultWithVersion())
	if err != nil {
		return nil, Errorf(CodeInvalidConfig, "network configuration: prevResult: %w", err)
	}
	newest, err := types100.NewResultFromResult(result)
	if err != nil {
		return nil, Errorf(CodeInvalidConfig, "network configuration: prevResult: %w", err)
	}
	return newest, nil
}

// prevResultWithVersion returns prevResult, with the configuration's cniVersion if it has none of its own: before version 1.0.0 results
// had no version.
func (c *NetConf) prevResultWithVersion() []byte {
	fields := map[string]json.RawMessage{}
	if err := json.Unmarshal(c.RawPrevResult, &fields); err != nil || fields["cniVersion"] != nil {
		return c.RawPrevResult
	}
	quoted, err := json.Marshal(c.CNIVersion)
	if err != nil {
		return c.RawPrevResult
	}
	fields["cniVersion"] = quoted
	data, err := json.Marshal(fields)
	if err != nil {
		return c.RawPrevResult
	}
	return data
}

// isCleanPath reports whether s is an absolute, clean path without unprintable characters.
func isCleanPath(s string) bool {
	return len(s) < 4096 && path.IsAbs(s) && path.Clean(s) == s && isPrintable(s)
}

// isPrintable reports whether s has no control characters: no NUL, no line breaks.
func isPrintable(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f || r == '\uFFFD' })
}
