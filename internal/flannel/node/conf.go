package node

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"weft.dev/weft/internal/flannel/address"
	"weft.dev/weft/internal/flannel/daemon"
	"weft.dev/weft/internal/flannel/delegate"
	"weft.dev/weft/internal/flannel/handover"
	"weft.dev/weft/internal/flannel/subnetenv"
	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/nft"
)

// pluginType is the CNI type in flannel's configurations.
const pluginType = "flannel"

// defaultConflist is the one in flannel's manifest, for a ConfigMap without cni-conf.json.
const defaultConflist = `{"name":"cbr0","cniVersion":"0.3.1","plugins":[` +
	`{"type":"flannel","delegate":{"hairpinMode":true,"isDefaultGateway":true}},` +
	`{"type":"portmap","capabilities":{"portMappings":true}}]}`

// conf is the content of cni-conf.json: the runtime's configuration, and the meaning of its flannel entry for pods.
type conf struct {
	list   map[string]json.RawMessage
	chain  []map[string]json.RawMessage
	at     int
	plugin *delegate.Config
}

// parseConf parses cni-conf.json: a configuration list with one plugin of type flannel, or that plugin's configuration alone.
func parseConf(text []byte) (*conf, error) {
	if len(bytes.TrimSpace(text)) == 0 {
		text = []byte(defaultConflist)
	}
	c := &conf{at: -1}
	if err := json.Unmarshal(text, &c.list); err != nil {
		return nil, fmt.Errorf("cni-conf.json is not a JSON object: %w", err)
	}
	if plugins, ok := c.list["plugins"]; ok {
		if err := json.Unmarshal(plugins, &c.chain); err != nil {
			return nil, fmt.Errorf("cni-conf.json: plugins is not a list of objects: %w", err)
		}
	} else {
		c.chain = []map[string]json.RawMessage{c.list}
		c.list = map[string]json.RawMessage{"name": c.list["name"], "cniVersion": cmpRaw(c.list["cniVersion"], `"0.3.1"`)}
	}
	for i, entry := range c.chain {
		var kind string
		if _, err := capabilitiesOf(entry); err != nil {
			return nil, err
		}
		if json.Unmarshal(entry["type"], &kind) == nil && kind == pluginType {
			if c.at >= 0 {
				return nil, errors.New("cni-conf.json has two plugins of type flannel: leave one")
			}
			c.at = i
		}
	}
	if c.at < 0 {
		return nil, errors.New("cni-conf.json has no plugin of type flannel")
	}
	entry := map[string]json.RawMessage{}
	maps.Copy(entry, c.chain[c.at])
	entry["name"], entry["cniVersion"] = c.list["name"], cmpRaw(c.list["cniVersion"], `"0.1.0"`)
	raw, err := json.Marshal(entry)
	if err != nil {
		return nil, fmt.Errorf("cni-conf.json: %w", err)
	}
	if c.plugin, err = delegate.Parse(raw); err != nil {
		return nil, fmt.Errorf("cni-conf.json: %w", err)
	}
	if c.plugin.Name == "" {
		return nil, errors.New("cni-conf.json: name is missing: a text such as \"cbr0\"")
	}
	if err := link.ValidateName(c.bridgeName()); err != nil {
		return nil, fmt.Errorf("cni-conf.json: delegate.bridge: %w", err)
	}
	return c, nil
}

func cmpRaw(raw json.RawMessage, otherwise string) json.RawMessage {
	if len(raw) == 0 {
		return json.RawMessage(otherwise)
	}
	return raw
}

// conflist returns the runtime's configuration. The keys in add are set in the entry of type flannel: with them its plugin finds an agent
// that is not at the default place.
func (c *conf) conflist(add map[string]string) ([]byte, error) {
	chain := make([]map[string]json.RawMessage, len(c.chain))
	for i, entry := range c.chain {
		chain[i] = map[string]json.RawMessage{}
		maps.Copy(chain[i], entry)
	}
	if err := c.passHostPorts(chain[c.at]); err != nil {
		return nil, err
	}
	for key, value := range add {
		raw, err := json.Marshal(value)
		if err != nil {
			return nil, fmt.Errorf("CNI configuration: %w", err)
		}
		chain[c.at][key] = raw
	}
	list := map[string]any{}
	for key, value := range c.list {
		list[key] = value
	}
	list["plugins"] = chain
	data, err := json.MarshalIndent(list, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("CNI configuration: %w", err)
	}
	return append(data, '\n'), nil
}

// capability is the runtime's name for host ports: it passes them to the entries that have it.
const capability = "portMappings"

// passHostPorts makes the runtime pass host ports to flannel's entry, unless another one, such as portmap's, has them: its rules would be left
// behind if it did not get the DEL of a pod whose host ports it serves.
func (c *conf) passHostPorts(entry map[string]json.RawMessage) error {
	for _, other := range c.chain {
		capabilities, err := capabilitiesOf(other)
		if err != nil {
			return err
		}
		if len(capabilities[capability]) > 0 {
			return nil
		}
	}
	capabilities, err := capabilitiesOf(entry)
	if err != nil {
		return err
	}
	if capabilities == nil {
		capabilities = map[string]json.RawMessage{}
	}
	capabilities[capability] = json.RawMessage("true")
	raw, err := json.Marshal(capabilities)
	if err != nil {
		return fmt.Errorf("CNI configuration: %w", err)
	}
	entry["capabilities"] = raw
	return nil
}

func capabilitiesOf(entry map[string]json.RawMessage) (map[string]json.RawMessage, error) {
	var capabilities map[string]json.RawMessage
	if raw := entry["capabilities"]; len(raw) > 0 {
		if err := json.Unmarshal(raw, &capabilities); err != nil {
			return nil, fmt.Errorf("cni-conf.json: capabilities of the plugin %s is not an object: %w", entry["type"], err)
		}
	}
	return capabilities, nil
}

// bridge is the meaning of the delegate's configuration for this node's pods.
type bridge struct {
	Name                               string
	Gateway, Default, Hairpin, Promisc bool
	MTU                                int
	Routes                             []route
	Ranges                             []netip.Prefix
	Traffic                            []nft.Traffic // that other programs' rules have to let pass
	files                              handover.Files
}

// route is a route of a pod; without a gateway it uses the bridge's.
type route struct {
	Dst netip.Prefix `json:"dst"`
	GW  netip.Addr   `json:"gw,omitzero"`
}

// delegateConf has the keys of the delegate bridge that the agent supports.
type delegateConf struct {
	Name             string   `json:"name"`
	CNIVersion       string   `json:"cniVersion"`
	Type             string   `json:"type"`
	Bridge           string   `json:"bridge"`
	IsGateway        bool     `json:"isGateway"`
	IsDefaultGateway bool     `json:"isDefaultGateway"`
	ForceAddress     bool     `json:"forceAddress"`
	IPMasq           bool     `json:"ipMasq"`
	MTU              int      `json:"mtu"`
	HairpinMode      bool     `json:"hairpinMode"`
	PromiscMode      bool     `json:"promiscMode"`
	IPAM             ipamConf `json:"ipam"`
}

type ipamConf struct {
	Type    string `json:"type"`
	DataDir string `json:"dataDir"`
	Routes  []struct {
		Dst netip.Prefix `json:"dst"`
		GW  netip.Addr   `json:"gw"`
	} `json:"routes"`
	Ranges [][]struct {
		Subnet netip.Prefix `json:"subnet"`
	} `json:"ranges"`
}

const (
	defaultBridge = "cni0"
	// defaultDataDir is the directory in which host-local stores the addresses in use, with a directory for each network.
	defaultDataDir = "/var/lib/cni/networks"
	// minMTU and maxMTU bound the MTU of the kernel's bridges and veths (ETH_MIN_MTU and ETH_MAX_MTU of linux/if_ether.h).
	minMTU, maxMTU = 68, 65535
)

// bridge returns the meaning of the configuration with the node's lease. A delegate that needs more than a bridge and host-local is
// refused: executing it would attach pods for which no NetworkPolicy is enforced.
func (c *conf) bridge(state *daemon.State) (*bridge, error) {
	env := subnetenv.Env{Subnet: state.Subnets[0], Subnet6: state.Subnets[1], MTU: state.MTU, IPMasq: state.Masq}
	for i, to := range []*[]netip.Prefix{&env.Networks, &env.Networks6} {
		if state.Subnets[i].IsValid() {
			*to = []netip.Prefix{state.Networks[i]}
		}
	}
	raw, err := c.plugin.Compile(&env)
	if err != nil {
		return nil, fmt.Errorf("cni-conf.json: %w", err)
	}
	if kind := c.plugin.Type(); kind != "bridge" {
		return nil, fmt.Errorf("cni-conf.json: delegate.type %q is not served by the agent, only bridge is: "+
			"use `weft flanneld` with weft-flannel on this node, which execute any delegate and enforce no NetworkPolicy", kind)
	}
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.DisallowUnknownFields()
	var d delegateConf
	if err := decoder.Decode(&d); err != nil {
		return nil, fmt.Errorf("cni-conf.json: delegate or ipam has a key or value that the agent does not serve "+
			"(bridge, isGateway, isDefaultGateway, forceAddress, ipMasq, mtu, hairpinMode, promiscMode; ipam: type, dataDir, routes): %w", err)
	}
	switch {
	case d.IPAM.Type != "host-local":
		return nil, fmt.Errorf("cni-conf.json: ipam.type %q is not served by the agent, only host-local is", d.IPAM.Type)
	case d.IPMasq:
		return nil, errors.New("cni-conf.json: delegate.ipMasq true is not served by the agent: have the node masquerade (--ip-masq), " +
			"or set delegate.ipMasq to false")
	case d.MTU != 0 && (d.MTU < minMTU || d.MTU > maxMTU):
		return nil, fmt.Errorf("cni-conf.json: delegate.mtu: %d is not from %d to %d; leave it out for the MTU of the node's lease", d.MTU, minMTU, maxMTU)
	}
	b := &bridge{
		Name: cmp.Or(d.Bridge, defaultBridge), Gateway: d.IsGateway || d.IsDefaultGateway, Default: d.IsDefaultGateway, Hairpin: d.HairpinMode,
		Promisc: d.PromiscMode, MTU: d.MTU,
		files: handover.Files{
			Network: c.plugin.Name, DataDir: cmp.Or(d.IPAM.DataDir, defaultDataDir), CacheDir: c.plugin.DataDir, Delegate: raw,
		},
	}
	if state.Forward {
		b.Traffic = daemon.Traffic(state.Networks[:]...)
	}
	for _, set := range d.IPAM.Ranges {
		for _, r := range set {
			b.Ranges = append(b.Ranges, r.Subnet.Masked())
		}
	}
	for _, r := range d.IPAM.Routes {
		if !r.Dst.IsValid() {
			return nil, errors.New(`cni-conf.json: ipam.routes has a route without dst, such as "192.0.2.0/24"`)
		}
		b.Routes = append(b.Routes, route{Dst: r.Dst.Masked(), GW: r.GW})
	}
	return b, nil
}

// six reports whether pods have IPv6 addresses.
func (b *bridge) six() bool {
	return slices.ContainsFunc(b.Ranges, func(r netip.Prefix) bool { return r.Addr().Is6() })
}

// gateways returns the bridge's addresses, with the prefix lengths of their ranges.
func (b *bridge) gateways() []netip.Prefix {
	if !b.Gateway {
		return nil
	}
	var out []netip.Prefix
	for _, r := range b.Ranges {
		out = append(out, netip.PrefixFrom(address.Gateway(r), r.Bits()))
	}
	return out
}
