package host

import (
	"net/netip"
	"slices"

	"weft.dev/weft/internal/link"
)

// Links returns tun0 and its routes. The switch creates tun0 itself (Rows).
func (c *Config) Links() map[link.Key]link.Item {
	items := map[link.Key]link.Item{}
	add := func(item link.Item) { items[item.Key()] = item }
	add(&link.Device{
		Name: Tun, Owner: owner, MTU: c.MTU, MAC: c.GatewayMAC, Up: true,
		// The kernel's route to the local subnet would exist besides those to the cluster networks, with an MTU of its own.
		Addresses:     []netip.Prefix{netip.PrefixFrom(c.Gateway, c.LocalSubnet.Bits())},
		NoPrefixRoute: true,
		Sysctls: link.Sysctls{
			DisableIPv6:   link.On, // with a link-local address the host would send ND and MLD to the switch
			Forwarding4:   link.On,
			ProxyARP:      link.Off,
			SendRedirects: link.Off,
			RouteLocalnet: link.On, // the node's packets to a host port at 127.0.0.1 leave here, and replies arrive here
		},
	})
	for _, network := range append(slices.Clip(c.ClusterNetworks), c.ServiceNetwork) {
		if network.IsValid() {
			add(&link.Route{Dst: network, Device: Tun, Source: c.Gateway, Scope: link.ScopeLink, MTU: c.RouteMTU})
		}
	}
	return items
}
