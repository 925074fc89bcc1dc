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
	// PluginType is the "type" of Weft's plugin in a network configuration, and so the file name of the
	// executable in the runtime's plugin directory.
	PluginType = "weft"
	// DefaultSocket is where the agent listens when the configuration does not say otherwise.
	DefaultSocket = "/run/weft/cni/cni.sock"
	// DefaultRecords is where the agent keeps its records of attachments when the configuration does not say
	// otherwise.
	DefaultRecords = "/var/lib/weft/attachments"

	// maxSocketPath is what fits into a unix socket address, terminated (sun_path, unix(7): 108 bytes).
	maxSocketPath = 107
)

// NetConf is the network configuration that a runtime gives to the plugin. Fields that are not here are ignored,
// as the specification has it: a configuration may carry other plugins' words.
type NetConf struct {
	// CNIVersion is the version of the specification that the answer is to be in.
	CNIVersion string `json:"cniVersion"`
	// Name is the name of the network, the same in the cluster.
	Name string `json:"name"`
	// Type is the name of the plugin's executable. Informative: the runtime has acted on it.
	Type string `json:"type"`
	// Socket is the path of the agent's socket; DefaultSocket when empty.
	Socket string `json:"socket,omitempty"`
	// Records is the directory of the agent's attachment records; DefaultRecords when empty.
	Records string `json:"records,omitempty"`
	// Ports is the path at which the agent wants the namespace of ports that stand ready for pods; empty: nowhere. The plugin
	// makes it, because a mount that an agent makes in its container is not the node's.
	Ports string `json:"ports,omitempty"`
	// RuntimeConfig is what the runtime was asked to pass for the capabilities that the configuration declares.
	RuntimeConfig RuntimeConfig `json:"runtimeConfig,omitzero"`
	// RawPrevResult is the result of the plugin before this one (ADD), or of this attachment's ADD (CHECK, DEL),
	// in the version of CNIVersion; empty when there is none. See PrevResult.
	RawPrevResult json.RawMessage `json:"prevResult,omitempty"`
	// ValidAttachments, for GC, are the attachments to keep. Nil means that the runtime did not name the key,
	// which is not the same as an empty list or null: those keep nothing.
	ValidAttachments []Attachment `json:"cni.dev/valid-attachments,omitempty"`
}

// RuntimeConfig holds the capabilities that Weft knows (CONVENTIONS.md of the CNI project).
type RuntimeConfig struct {
	// IPs are the addresses asked for, with or without a prefix length (capability "ips").
	IPs []string `json:"ips,omitempty"`
	// MAC is the hardware address asked for (capability "mac").
	MAC string `json:"mac,omitempty"`
	// PortMappings are the ports of the node that lead to the pod (capability "portMappings"). ParsePortMappings reads them: for
	// an ADD, so that what it refuses can still be taken down.
	PortMappings []PortMapping `json:"portMappings,omitempty"`
	// Bandwidth limits what the pod receives and sends (capability "bandwidth"). ParseBandwidth reads it, for an ADD, as above.
	Bandwidth json.RawMessage `json:"bandwidth,omitempty"`
	// PodAnnotations are the pod's annotations (capability "io.kubernetes.cri.pod-annotations" of containerd and CRI-O).
	PodAnnotations map[string]string `json:"io.kubernetes.cri.pod-annotations,omitempty"`
}

// Attachment names an attachment: an interface of a container.
type Attachment struct {
	ContainerID string `json:"containerID"`
	IfName      string `json:"ifname"`
}

// ParseNetConf reads a network configuration, sets the defaults and checks every field. What is no JSON, or is
// cut short, gives CodeDecode; a field with a wrong value gives CodeInvalidConfig and is named.
func ParseNetConf(data []byte) (*NetConf, error) {
	conf := &NetConf{}
	if err := json.Unmarshal(data, conf); err != nil {
		return nil, Errorf(CodeDecode, "network configuration: %w", err)
	}
	if isNull(conf.RawPrevResult) {
		conf.RawPrevResult = nil
	}
	if err := conf.tellNullFromAbsent(data); err != nil {
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

// tellNullFromAbsent makes a valid-attachments of null the empty list: the CNI library writes null when a runtime
// collects garbage on a node without attachments. Only the absence of the key means that nothing was said.
func (c *NetConf) tellNullFromAbsent(data []byte) error {
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

// ParseAddress reads an address of RuntimeConfig.IPs. An address without a prefix length gets that of a single
// address.
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

// PrevResult returns the result that the runtime passed, in the newest form; nil when it passed none.
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

// prevResultWithVersion returns prevResult with the configuration's cniVersion where it has none of its own:
// before version 1.0.0 results came without.
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

// isCleanPath reports whether s is an absolute path without detours and without characters that have no place
// in one.
func isCleanPath(s string) bool {
	return len(s) < 4096 && path.IsAbs(s) && path.Clean(s) == s && isPrintable(s)
}

// isPrintable reports whether s has no control characters: no NUL, no line breaks.
func isPrintable(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f || r == '\uFFFD' })
}
