// Package clusternetwork parses the objects of network.openshift.io/v1 into typed values. For an invalid object it reports all errors; each
// names the field and a valid value.
//
// The API server enforces most of the same rules when objects are written. They are checked here again because objects may be older than
// the rules, and because some rules concern more than one object.
package clusternetwork

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	networkv1 "weft.dev/weft/api/openshift/v1"
	"weft.dev/weft/internal/ipam"
)

// Mode is the kind of isolation between pods.
type Mode string

// The modes, named as in the plugin names.
const (
	// ModeSubnet is the flat network: no isolation, no VNIDs.
	ModeSubnet Mode = "subnet"
	// ModeMultitenant isolates namespaces with different VNIDs.
	ModeMultitenant Mode = "multitenant"
	// ModeNetworkPolicy isolates by NetworkPolicy objects.
	ModeNetworkPolicy Mode = "networkpolicy"
)

// HasVNIDs reports whether namespaces have VNIDs of their own in this mode.
func (m Mode) HasVNIDs() bool { return m == ModeMultitenant || m == ModeNetworkPolicy }

// Config is a valid ClusterNetwork.
type Config struct {
	// ClusterNetworks are the ranges of the pods, in order of preference. There is at least one; they do not overlap.
	ClusterNetworks []ipam.Range
	// ServiceNetwork is the range of the Services' addresses. It overlaps no cluster network.
	ServiceNetwork netip.Prefix
	// VXLANPort is the UDP port of the tunnels.
	VXLANPort uint16
	// MTU is the pods' MTU in bytes; 0: each node uses its interface's MTU minus networkv1.VXLANOverhead.
	MTU int
	// Mode is the kind of isolation.
	Mode Mode
}

// Parse parses the object. The error lists everything that is invalid (an utilerrors.Aggregate of *field.Error).
func Parse(obj *networkv1.ClusterNetwork) (Config, error) {
	p := &parser{}
	config := Config{
		ClusterNetworks: p.ranges(obj),
		ServiceNetwork:  p.prefix(field.NewPath("serviceNetwork"), obj.ServiceNetwork),
		VXLANPort:       p.port(field.NewPath("vxlanPort"), obj.VXLANPort),
		MTU:             p.mtu(field.NewPath("mtu"), obj.MTU),
		Mode:            p.mode(field.NewPath("pluginName"), obj.PluginName),
	}
	p.overlaps(obj, config)
	if err := p.errs.ToAggregate(); err != nil {
		return Config{}, fmt.Errorf("ClusterNetwork %q: %w", obj.Name, err)
	}
	return config, nil
}

// legacyNetwork is the field of the range in the old form of a ClusterNetwork, with a single range.
const legacyNetwork = "network"

// ranges returns the cluster networks, at the same index as in the object; invalid ones are zero.
func (p *parser) ranges(obj *networkv1.ClusterNetwork) []ipam.Range {
	path := field.NewPath("clusterNetworks")
	network, length := field.NewPath(legacyNetwork), field.NewPath("hostsubnetlength")
	if len(obj.ClusterNetworks) == 0 {
		if obj.Network == "" {
			p.errs = append(p.errs, field.Required(path, "give at least one range, such as {CIDR: 10.128.0.0/14, hostSubnetLength: 9}"))
			return nil
		}
		return []ipam.Range{{
			Prefix:   p.prefix(network, obj.Network),
			HostBits: p.hostBits(length, obj.Network, obj.HostSubnetLength),
		}}
	}
	first := obj.ClusterNetworks[0]
	if obj.Network != "" && obj.Network != first.CIDR {
		p.errs = append(p.errs, field.Invalid(network, obj.Network, "leave it out, or set it to clusterNetworks[0].CIDR, "+first.CIDR))
	}
	if obj.HostSubnetLength != 0 && obj.HostSubnetLength != first.HostSubnetLength {
		p.errs = append(p.errs, field.Invalid(length, obj.HostSubnetLength,
			fmt.Sprintf("leave it out, or set it to clusterNetworks[0].hostSubnetLength, %d", first.HostSubnetLength)))
	}
	switch {
	case obj.Network != "" && obj.HostSubnetLength == 0:
		p.errs = append(p.errs, field.Required(length, "set it to clusterNetworks[0].hostSubnetLength, or leave network out as well"))
	case obj.Network == "" && obj.HostSubnetLength != 0:
		p.errs = append(p.errs, field.Required(network, "set it to clusterNetworks[0].CIDR, or leave hostsubnetlength out as well"))
	}
	ranges := make([]ipam.Range, len(obj.ClusterNetworks))
	for i, entry := range obj.ClusterNetworks {
		ranges[i] = ipam.Range{
			Prefix:   p.prefix(path.Index(i).Child("CIDR"), entry.CIDR),
			HostBits: p.hostBits(path.Index(i).Child("hostSubnetLength"), entry.CIDR, entry.HostSubnetLength),
		}
	}
	return ranges
}

// overlaps reports overlaps of the cluster networks with each other and with the service network.
func (p *parser) overlaps(obj *networkv1.ClusterNetwork, config Config) {
	path := func(i int) *field.Path {
		if len(obj.ClusterNetworks) == 0 {
			return field.NewPath(legacyNetwork)
		}
		return field.NewPath("clusterNetworks").Index(i).Child("CIDR")
	}
	for i, r := range config.ClusterNetworks {
		for j, other := range config.ClusterNetworks[:i] {
			if r.Prefix.Overlaps(other.Prefix) {
				p.errs = append(p.errs, field.Invalid(path(i), r.Prefix.String(),
					fmt.Sprintf("overlaps %s, %s: choose ranges that do not overlap", path(j), other.Prefix)))
			}
		}
		if r.Prefix.Overlaps(config.ServiceNetwork) {
			p.errs = append(p.errs, field.Invalid(path(i), r.Prefix.String(),
				fmt.Sprintf("overlaps serviceNetwork, %s: choose ranges that do not overlap", config.ServiceNetwork)))
		}
	}
}

// CheckNode returns why a node with this address cannot be used: the address must not be in the ranges of pods and Services.
func (c Config) CheckNode(address netip.Addr) error {
	for _, r := range c.ClusterNetworks {
		if r.Prefix.Contains(address) {
			return fmt.Errorf("address %s of the node lies in the cluster network %s: use other addresses for nodes, or another cluster network", address, r.Prefix)
		}
	}
	if c.ServiceNetwork.Contains(address) {
		return fmt.Errorf("address %s of the node lies in the service network %s: use other addresses for nodes, or another service network", address, c.ServiceNetwork)
	}
	return nil
}

// InterfaceAddress is an address of a host with its prefix length and its interface.
type InterfaceAddress struct {
	// Interface is the interface's name.
	Interface string
	// Prefix is the address with the length of its network, 192.0.2.10/24.
	Prefix netip.Prefix
}

// CheckHost reports, all at once, which directly connected networks of a host overlap the ranges of pods or Services: the host could not
// distinguish them. Leave Weft's own interface (tun0) out of the addresses.
func (c Config) CheckHost(addresses []InterfaceAddress) error {
	var errs field.ErrorList
	for _, a := range addresses {
		connected := a.Prefix.Masked()
		for i, r := range c.ClusterNetworks {
			if r.Prefix.Overlaps(connected) {
				errs = append(errs, field.Invalid(field.NewPath("clusterNetworks").Index(i).Child("CIDR"), r.Prefix.String(),
					fmt.Sprintf("overlaps %s, the network of interface %s: choose another range", connected, a.Interface)))
			}
		}
		if c.ServiceNetwork.Overlaps(connected) {
			errs = append(errs, field.Invalid(field.NewPath("serviceNetwork"), c.ServiceNetwork.String(),
				fmt.Sprintf("overlaps %s, the network of interface %s: choose another range", connected, a.Interface)))
		}
	}
	return errs.ToAggregate() //nolint:wrapcheck // each error names its field
}

// Contains reports whether a subnet lies in one of the cluster networks.
func (c Config) Contains(subnet netip.Prefix) bool {
	return slices.ContainsFunc(c.ClusterNetworks, func(r ipam.Range) bool {
		return r.Prefix.Bits() <= subnet.Bits() && r.Prefix.Contains(subnet.Addr())
	})
}

func (p *parser) mode(path *field.Path, name string) Mode {
	switch strings.ToLower(name) {
	case networkv1.PluginSubnet:
		return ModeSubnet
	case networkv1.PluginMultitenant:
		return ModeMultitenant
	case networkv1.PluginNetworkPolicy, "":
		return ModeNetworkPolicy
	}
	p.errs = append(p.errs, field.NotSupported(path, name,
		[]string{networkv1.PluginSubnet, networkv1.PluginMultitenant, networkv1.PluginNetworkPolicy}))
	return ""
}

func (p *parser) port(path *field.Path, port *uint32) uint16 {
	if port == nil {
		return networkv1.DefaultVXLANPort
	}
	if *port < 1 || *port > 65535 {
		p.errs = append(p.errs, field.Invalid(path, *port, "must be a UDP port, 1 to 65535"))
		return 0
	}
	return uint16(*port)
}

func (p *parser) mtu(path *field.Path, mtu *uint32) int {
	const least, most = 576, 65536 // what OpenShift's CRD accepts
	if mtu == nil {
		return 0
	}
	if *mtu < least || *mtu > most {
		p.errs = append(p.errs, field.Invalid(path, *mtu, fmt.Sprintf("must be %d to %d bytes", least, most)))
		return 0
	}
	return int(*mtu)
}
