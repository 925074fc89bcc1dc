// Package delegate interprets a configuration of the CNI type flannel: it returns the configuration of the plugin to which it delegates,
// composed of its own fields and of subnet.env.
package delegate

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"weft.dev/weft/internal/flannel/subnetenv"
)

// DefaultDataDir is where flannel's plugin stores the configurations that it passed to delegates.
const DefaultDataDir = "/var/lib/cni/flannel"

// Config is a configuration of the CNI type flannel.
type Config struct {
	Name, CNIVersion string
	// SubnetFile and DataDir have flannel's defaults if the configuration has none.
	SubnetFile, DataDir string
	// Delegate are the fields for the delegate, IPAM those for its ipam.
	Delegate, IPAM map[string]json.RawMessage
	// RuntimeConfig is passed on unchanged.
	RuntimeConfig json.RawMessage
	// ValidAttachments is the list in a GC request: nil if the key is absent, which differs from an empty list.
	ValidAttachments []Attachment
}

// Attachment names an attachment in a GC request.
type Attachment struct {
	ContainerID string `json:"containerID"`
	IfName      string `json:"ifname"`
}

type text struct {
	Name             string                     `json:"name"`
	CNIVersion       string                     `json:"cniVersion"`
	SubnetFile       string                     `json:"subnetFile"`
	DataDir          string                     `json:"dataDir"`
	Delegate         map[string]json.RawMessage `json:"delegate"`
	IPAM             map[string]json.RawMessage `json:"ipam"`
	RuntimeConfig    json.RawMessage            `json:"runtimeConfig"`
	ValidAttachments []Attachment               `json:"cni.dev/valid-attachments"`
}

// Parse parses a plugin configuration. An error names the field and what is valid.
func Parse(stdin []byte) (*Config, error) {
	c, err := Decode(stdin)
	if err != nil {
		return nil, err
	}
	if err := c.check(); err != nil {
		return nil, err
	}
	return c, nil
}

// Decode parses a plugin configuration and does not check what is for the delegate: a DEL does not depend on it.
func Decode(stdin []byte) (*Config, error) {
	var t text
	if err := json.Unmarshal(stdin, &t); err != nil {
		return nil, fmt.Errorf("the configuration of type flannel is not valid: %w", err)
	}
	c := &Config{
		Name: t.Name, CNIVersion: t.CNIVersion, SubnetFile: t.SubnetFile, DataDir: t.DataDir, Delegate: t.Delegate, IPAM: t.IPAM,
		RuntimeConfig: t.RuntimeConfig, ValidAttachments: t.ValidAttachments,
	}
	if c.SubnetFile == "" {
		c.SubnetFile = subnetenv.DefaultPath
	}
	if c.DataDir == "" {
		c.DataDir = DefaultDataDir
	}
	return c, nil
}

// check checks what is for the delegate.
func (c *Config) check() error {
	for _, key := range []string{"name", "ipam"} {
		if _, ok := c.Delegate[key]; ok {
			return fmt.Errorf("delegate.%s must not be set: flannel sets it (ipam's other fields go into ipam beside delegate)", key)
		}
	}
	if _, err := textField(c.Delegate, "type"); err != nil {
		return fmt.Errorf("delegate.type: %w", err)
	}
	if _, err := textField(c.IPAM, "type"); err != nil {
		return fmt.Errorf("ipam.type: %w", err)
	}
	if raw, ok := c.IPAM["routes"]; ok {
		var routes []json.RawMessage
		if err := json.Unmarshal(raw, &routes); err != nil {
			return fmt.Errorf(`ipam.routes is not a list such as [{"dst":"192.0.2.0/24"}]`)
		}
	}
	return nil
}

// Type returns the delegate's type: bridge unless the configuration names another.
func (c *Config) Type() string {
	if kind, _ := textField(c.Delegate, "type"); kind != "" {
		return kind
	}
	return "bridge"
}

func textField(fields map[string]json.RawMessage, key string) (string, error) {
	raw, ok := fields[key]
	if !ok {
		return "", nil
	}
	var value string
	if err := json.Unmarshal(raw, &value); err != nil || strings.ContainsAny(value, "/\\") || value == "" || value == "." || value == ".." {
		return "", fmt.Errorf("%s is not the name of a plugin: a text without slashes, such as \"bridge\"", raw)
	}
	return value, nil
}

// Compile returns the delegate's configuration. Keys are sorted alphabetically.
func (c *Config) Compile(env *subnetenv.Env) ([]byte, error) {
	out := map[string]any{}
	for key, value := range c.Delegate {
		out[key] = value
	}
	set := func(key string, value any) {
		if _, ok := out[key]; !ok {
			out[key] = value
		}
	}
	out["name"] = c.Name
	if c.CNIVersion != "" {
		out["cniVersion"] = c.CNIVersion
	}
	if len(c.RuntimeConfig) > 0 && string(c.RuntimeConfig) != "null" {
		out["runtimeConfig"] = c.RuntimeConfig
	}
	out["type"] = c.Type()
	set("ipMasq", !env.IPMasq)
	set("mtu", env.MTU)
	if c.Type() == "bridge" {
		set("isGateway", true)
	}
	ipam, err := c.ipam(env)
	if err != nil {
		return nil, err
	}
	out["ipam"] = ipam
	raw, err := json.Marshal(out)
	if err != nil {
		return nil, fmt.Errorf("the configuration of the delegate %s: %w", c.Type(), err)
	}
	return raw, nil
}

type ipRange struct {
	Subnet string `json:"subnet"`
}

type route struct {
	Dst string `json:"dst"`
}

func (c *Config) ipam(env *subnetenv.Env) (map[string]any, error) {
	out := map[string]any{}
	for key, value := range c.IPAM {
		out[key] = value
	}
	if _, ok := out["type"]; !ok {
		out["type"] = "host-local"
	}
	var ranges [][]ipRange
	for _, subnet := range []netip.Prefix{env.Subnet, env.Subnet6} {
		if subnet.IsValid() {
			ranges = append(ranges, []ipRange{{subnet.String()}})
		}
	}
	out["ranges"] = ranges
	var routes []any
	if raw, ok := c.IPAM["routes"]; ok {
		if err := json.Unmarshal(raw, &routes); err != nil {
			return nil, fmt.Errorf("ipam.routes: %w", err)
		}
	}
	for _, networks := range [][]netip.Prefix{env.Networks, env.Networks6} {
		for _, network := range networks {
			routes = append(routes, route{network.String()})
		}
	}
	out["routes"] = routes
	return out, nil
}

// CacheFile returns the content of the plugin's file for a delegate's configuration, which DEL passes on. Its end distinguishes it from a file
// of flannel's plugin, which may be that of any interface of its container.
func CacheFile(config []byte) []byte { return append(slices.Clone(bytes.TrimSpace(config)), '\n') }

// OfWeft reports whether CacheFile has made this content of a file.
func OfWeft(content []byte) bool { return bytes.HasSuffix(content, []byte("\n")) }
