// Package plan derives from an attachment's record the veth pair to make and the result for the runtime. Its functions are pure, except for
// CheckPair: the same record and settings give the same pair and the same result, so that an ADD, a CHECK and a restart agree.
package plan

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/link/podlink"
)

// Settings are common to all attachments of a node.
type Settings struct {
	// ClusterNetworks are the pods' networks. They are on-link for pods: neighbours answer for all their addresses.
	ClusterNetworks []netip.Prefix
	// ServiceNetworks are the networks of the Services, reached through the gateway.
	ServiceNetworks []netip.Prefix
	// RouteMTU is the MTU of the pods' routes in bytes, if it has to be less than the interface's (while a cluster's MTU is being changed).
	// With 0, routes use the interface's MTU.
	RouteMTU int
	// HostGroup is the device group of the host veths.
	HostGroup uint32
	// TxOffloadOff turns transmit offloads off, as Open vSwitch's userspace datapath needs.
	TxOffloadOff bool
}

// multicast is the destinations that pods send to on-link, not through the gateway. For IPv6 the kernel does that by itself.
func multicast() netip.Prefix { return netip.MustParsePrefix("224.0.0.0/4") }

// MAC returns the hardware address of an interface with the given addresses: 0a:58 and the first IPv4 address, as
// OpenShift SDN has it; without one, 0a:58 and four bytes of the first address's SHA-256, as OVN-Kubernetes has it.
// It returns nil when there are no addresses.
func MAC(addresses []netip.Prefix) net.HardwareAddr {
	if len(addresses) == 0 {
		return nil
	}
	mac := net.HardwareAddr{0x0a, 0x58}
	for _, p := range addresses {
		if p.Addr().Is4() {
			return append(mac, p.Addr().AsSlice()...)
		}
	}
	sum := sha256.Sum256(net.IP(addresses[0].Addr().AsSlice()))
	return append(mac, sum[:4]...)
}

// Pair returns the veth pair of an attachment.
func Pair(rec *attach.Record, settings *Settings) (podlink.Pair, error) {
	var mac net.HardwareAddr
	if rec.MAC != "" {
		parsed, err := net.ParseMAC(rec.MAC)
		if err != nil {
			return podlink.Pair{}, fmt.Errorf("attachment %s: %w", rec.Key(), err)
		}
		mac = parsed
	}
	if rec.HostInterface == "" {
		return podlink.Pair{}, fmt.Errorf("attachment %s: its record has no host interface", rec.Key())
	}
	return podlink.Pair{
		HostName:     rec.HostInterface,
		PodName:      rec.IfName,
		Netns:        rec.Netns,
		Owner:        rec.Key().Owner(),
		MTU:          rec.MTU,
		PodMAC:       mac,
		HostGroup:    settings.HostGroup,
		TxOffloadOff: settings.TxOffloadOff,
		PodAddresses: slices.Clone(rec.Addresses),
		PodRoutes:    routes(rec, settings),
		Shape:        Shape(rec),
	}, nil
}

// The burst and the queue of a shaper, in milliseconds of its rate. The burst covers the delay of a kernel timer, so that the rate is not
// lost. The queue holds the packets that TCP has in flight while it finds its rate, and limits the delay to the same time.
const (
	burstTime = 25
	queueTime = 100
	// leastBurst and leastQueue are the minimum of both, in packets of the interface's MTU.
	leastBurst = 2
	leastQueue = 32
)

// Shape returns how an attachment's traffic is shaped.
func Shape(rec *attach.Record) podlink.Shape {
	return podlink.Shape{Receive: shaper(rec.Bandwidth.Ingress, rec.MTU), Send: shaper(rec.Bandwidth.Egress, rec.MTU)}
}

func shaper(bits uint64, mtu int) podlink.Shaper {
	if bits == 0 {
		return podlink.Shaper{}
	}
	if mtu == 0 {
		mtu = math.MaxUint16
	}
	const byteBits, second = 8, 1000
	rate, packet := bits/byteBits, uint64(mtu) //nolint:gosec // a record's MTU is not negative
	part := func(time, packets uint64) uint32 {
		return uint32(min(max(rate/second*time, packets*packet), math.MaxInt32)) //nolint:gosec // bounded
	}
	return podlink.Shaper{Rate: rate, Burst: part(burstTime, leastBurst), Queue: part(queueTime, leastQueue)}
}

// routes returns the routes of the pod for each family: first the on-link destinations, then those through the gateway. The subnets of
// the addresses are not included: the kernel adds these routes with the addresses. A secondary interface has no routes here, so the first
// interface's routes remain as they are.
func routes(rec *attach.Record, settings *Settings) []link.Route {
	if rec.Secondary {
		return nil
	}
	var list []link.Route
	for _, v4 := range []bool{true, false} {
		if !slices.ContainsFunc(rec.Addresses, func(p netip.Prefix) bool { return p.Addr().Is4() == v4 }) {
			continue
		}
		for _, dst := range family(settings.ClusterNetworks, v4) {
			list = append(list, link.Route{Dst: dst, MTU: settings.RouteMTU})
		}
		if v4 {
			list = append(list, link.Route{Dst: multicast(), MTU: settings.RouteMTU})
		}
		list = append(list, gatewayRoutes(rec, settings, v4)...)
	}
	return list
}

// gatewayRoutes returns the routes through the gateway of one family; none without a gateway.
func gatewayRoutes(rec *attach.Record, settings *Settings, v4 bool) []link.Route {
	i := slices.IndexFunc(rec.Gateway, func(gw netip.Addr) bool { return gw.Is4() == v4 })
	if i < 0 {
		return nil
	}
	gateway := rec.Gateway[i]
	near := slices.ContainsFunc(rec.Addresses, func(p netip.Prefix) bool { return p.Contains(gateway) })
	var list []link.Route
	for _, dst := range slices.Concat(nodeAddresses(rec, v4), family(settings.ServiceNetworks, v4), []netip.Prefix{defaultRoute(v4)}) {
		list = append(list, link.Route{Dst: dst, Gateway: gateway, MTU: settings.RouteMTU, OnLink: !near})
	}
	return list
}

// nodeAddresses returns the destinations that a pod with a macvlan reaches only by its own interface, whatever its default route: the
// addresses of the device below the macvlan.
func nodeAddresses(rec *attach.Record, v4 bool) []netip.Prefix {
	if rec.Macvlan == nil || !v4 {
		return nil
	}
	var list []netip.Prefix
	for _, address := range rec.Macvlan.Addresses {
		list = append(list, netip.PrefixFrom(address, address.BitLen()))
	}
	return list
}

// CheckPair checks an attachment's own interface. An egress router may have changed its default route after its start.
func CheckPair(ctx context.Context, pods podlink.Links, rec *attach.Record, pair podlink.Pair) error {
	err := pods.Check(ctx, pair)
	if rec.Macvlan == nil || err == nil {
		return err
	}
	pair.PodRoutes = withoutDefault(pair.PodRoutes)
	if pods.Check(ctx, pair) == nil {
		return nil
	}
	return err
}

// withoutDefault returns routes without the default routes.
func withoutDefault(routes []link.Route) []link.Route {
	return slices.DeleteFunc(slices.Clone(routes), func(r link.Route) bool { return r.Dst.Bits() == 0 })
}

func family(prefixes []netip.Prefix, v4 bool) []netip.Prefix {
	var list []netip.Prefix
	for _, p := range prefixes {
		if p.Addr().Is4() == v4 {
			list = append(list, p.Masked())
		}
	}
	return list
}

func defaultRoute(v4 bool) netip.Prefix {
	if v4 {
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
}

// Result returns the CNI result of an attachment: the host veth, its veth peer, the addresses with their gateways, and the routes.
// hostMAC is the host veth's hardware address; nil leaves it out.
func Result(rec *attach.Record, settings *Settings, hostMAC net.HardwareAddr) *types100.Result {
	result := &types100.Result{CNIVersion: types100.ImplementedSpecVersion}
	if rec.HostInterface != "" {
		result.Interfaces = append(result.Interfaces, &types100.Interface{
			Name: rec.HostInterface, Mac: hostMAC.String(), Mtu: rec.MTU,
		})
	}
	result.Interfaces = append(result.Interfaces, &types100.Interface{
		Name: rec.IfName, Mac: rec.MAC, Mtu: rec.MTU, Sandbox: rec.Netns,
	})
	own := len(result.Interfaces) - 1
	for _, p := range rec.Addresses {
		ip := &types100.IPConfig{Interface: new(own), Address: ipNet(p)}
		for _, gw := range rec.Gateway {
			if gw.Is4() == p.Addr().Is4() {
				ip.Gateway = gw.AsSlice()
			}
		}
		result.IPs = append(result.IPs, ip)
	}
	for _, r := range routes(rec, settings) {
		route := &types.Route{Dst: ipNet(r.Dst), MTU: r.MTU}
		if r.Gateway.IsValid() {
			route.GW = r.Gateway.AsSlice()
		}
		result.Routes = append(result.Routes, route)
	}
	return result
}

// ErrDiffers is wrapped by Compare's errors.
var ErrDiffers = errors.New("the attachment differs from the result given to the runtime")

// Compare reports whether the attachment still matches prev, the result of its ADD: the pod's interface with its hardware address, and
// its addresses. It ignores interfaces and addresses of other plugins of a chain. If prev is nil, it compares nothing.
func Compare(rec *attach.Record, prev *types100.Result) error {
	if prev == nil {
		return nil
	}
	own := slices.IndexFunc(prev.Interfaces, func(i *types100.Interface) bool {
		return i != nil && i.Sandbox != "" && i.Name == rec.IfName
	})
	if own < 0 {
		return fmt.Errorf("%w: the result has no interface %s", ErrDiffers, rec.IfName)
	}
	if mac := prev.Interfaces[own].Mac; mac != "" && mac != rec.MAC {
		return fmt.Errorf("%w: hardware address %s, it was %s", ErrDiffers, rec.MAC, mac)
	}
	for _, p := range rec.Addresses {
		want := ipNet(p)
		if !slices.ContainsFunc(prev.IPs, func(ip *types100.IPConfig) bool {
			return ip != nil && ip.Address.String() == want.String()
		}) {
			return fmt.Errorf("%w: the result lacks address %s", ErrDiffers, p)
		}
	}
	return nil
}

// ipNet returns a prefix in the form of the CNI library.
func ipNet(p netip.Prefix) net.IPNet {
	return net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
