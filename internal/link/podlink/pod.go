package podlink

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"weft.dev/weft/internal/link"
)

// DeadGroup is the device group to which links are moved, after they are down, to be deleted in one call. Nothing else may ever be put into
// it: everything in it is deleted. The number is "WEFT" in ASCII.
const DeadGroup uint32 = 0x57454654

// Pair is the veth pair of one pod: the host veth, which becomes a port of a switch, and the pod's end.
type Pair struct {
	// HostName and PodName are the names of the two ends; both must pass ValidateName.
	HostName, PodName string
	// Netns is the path of the pod's network namespace.
	Netns string
	// Preplugged, if not empty, is the path of the namespace with the veth peers of pre-plugged ports: the pod's interface is created on the
	// pre-plugged port HostName, whose alias contains no Owner. HostGroup is then only compared, by Check, and TxOffloadOff is ignored: both
	// are set when the port is created.
	Preplugged string
	// Shape is the shape of the pod's traffic, from its first packet on. Only a pre-plugged port can have one.
	Shape Shape
	// Owner is the object the pair comes from ("attachment/<container>/<interface>"); it follows PodAliasPrefix in the alias of the host veth.
	// A link of the same name with another owner is ErrForeign. At most 200 bytes.
	Owner string
	// MTU of both ends in bytes; 0 is the kernel's default, 1500.
	MTU int
	// PodMAC is the MAC of the pod's end; if empty, the kernel chooses one (and Check does not compare it).
	PodMAC net.HardwareAddr
	// HostGroup is the device group of the host veth. It is set in the request that creates the link, before it can be up.
	HostGroup uint32
	// TxOffloadOff turns transmit checksumming and segmentation off on the pod's end. The userspace datapath needs this, because it reads the
	// pod's packets as they are sent. What the datapath itself sends to the host veth is complete.
	TxOffloadOff bool
	// PodAddresses is the exact list of the addresses of the pod's end. Without an IPv6 address, IPv6 is disabled on it.
	PodAddresses []netip.Prefix
	// NoPrefixRoute keeps the kernel from adding a route for each address's prefix.
	NoPrefixRoute bool
	// PodRoutes are the routes in the pod's namespace. Their Netns and Device are ignored: they use the pod's end (unless Blackhole). They
	// have Protocol like all of Weft's routes.
	PodRoutes []link.Route
	// PodSysctls are set on the pod's end before it is up, in addition to accept_ra 0 and, without an IPv6 address, disable_ipv6 1, which are
	// always set.
	PodSysctls link.Sysctls
}

// Created describes what Create made or found.
type Created struct {
	// HostIndex and PodIndex are the interface indexes of the ends, each in its own namespace.
	HostIndex, PodIndex int
	// HostMAC and PodMAC are their addresses.
	HostMAC, PodMAC net.HardwareAddr
}

// Links creates, checks and reaps the veth pairs of pods. *[podveth.Pods] does it in the kernel, *[Fake] in memory.
type Links interface {
	// Create creates the pair and configures both ends. It may be called again with the same pair, also after an interruption at any point,
	// and completes what is missing. ErrNoNamespace and ErrNotNamespace are about Netns, ErrForeign names a conflicting link.
	Create(ctx context.Context, pair Pair) (Created, error)
	// Check returns nil if everything is as Create leaves it, or a joined error of *Difference. Any other error means that the check failed.
	Check(ctx context.Context, pair Pair) error
	// Delete removes the pairs whose host veths have these names; the more at once, the cheaper each. Names that do not exist are no error. A
	// link that is not Weft's pod veth is left alone and named in an ErrForeign, after the others have been removed.
	Delete(ctx context.Context, hostNames ...string) error
	// Unplug removes a pod's interface from its pre-plugged port, which stays. An interface that does not exist is no error. began is called
	// once the pod's namespace is open: from then on its path may be removed. ErrOccupied means that an interface is still on the port, and
	// ErrNoDevice that one of the port's ends is missing: then it cannot be used again.
	Unplug(ctx context.Context, pair Pair, began func()) error
	// List returns the host veths that exist in the process's own namespace, name to owner. After a restart, the reaper works from this list.
	List(ctx context.Context) (map[string]string, error)
}

// HostObject is how errors and differences name the host veth.
func (p *Pair) HostObject() string { return "host end " + p.HostName }

// PodObject is how errors and differences name the pod's end.
func (p *Pair) PodObject() string { return "pod end " + p.PodName }

// CompareRoutes compares the pod's routes with those read; it empties the map.
func (p *Pair) CompareRoutes(have map[link.Key]*link.Route) []error {
	var found []error
	for _, want := range p.PodRoutes {
		route := p.PodRoute(want)
		actual, ok := have[route.Key()]
		delete(have, route.Key())
		switch {
		case !ok:
			found = append(found, &Difference{route.String(), "does not exist"})
		case !route.Equal(actual):
			found = append(found, &Difference{route.String(), "is " + actual.String()})
		}
	}
	for _, stray := range have {
		if stray.Device != p.PodName {
			continue // the route of another interface of the pod, or of another program
		}
		found = append(found, &Difference{stray.String(), "should not exist"})
	}
	return found
}

// Differences returns a *Difference for each difference between the desired and the actual state of an object.
func Differences(object string, want, have *link.Device) []error {
	var found []error
	for _, line := range want.Differences(have) {
		found = append(found, &Difference{object, line})
	}
	return found
}

// HostDevice is the host veth as Create makes it. Owner is the whole alias.
func (p *Pair) HostDevice() *link.Device {
	return &link.Device{
		Name: p.HostName, Owner: p.Alias(), MTU: p.LinkMTU(), Up: true, Group: p.HostGroup,
		Sysctls: HostSysctls(),
	}
}

// PodDevice is the pod's end as Create makes it.
func (p *Pair) PodDevice() *link.Device {
	return &link.Device{
		Name: p.PodName, MTU: p.LinkMTU(), MAC: p.PodMAC, Up: true, TxOffload: p.offload(), Sysctls: p.PodSettings(),
		Addresses:     slices.Clone[[]netip.Prefix](p.PodAddresses),
		NoPrefixRoute: p.NoPrefixRoute,
	}
}

func (p *Pair) offload() link.Toggle {
	if p.TxOffloadOff && p.Preplugged == "" {
		return link.Off
	}
	return link.Leave
}

// defaultMTU is ETH_DATA_LEN, the kernel's default for a veth.
const defaultMTU = 1500

// LinkMTU is the MTU of both ends: that of the pair, or the default.
func (p *Pair) LinkMTU() int {
	if p.MTU == 0 {
		return defaultMTU
	}
	return p.MTU
}

// Alias is the alias of the host veth.
func (p *Pair) Alias() string {
	if p.Preplugged != "" {
		return PrepluggedAlias(p.HostName)
	}
	return link.PodAliasPrefix + p.Owner
}

// PodRoute returns a route of PodRoutes as it is read back.
func (p *Pair) PodRoute(route link.Route) *link.Route {
	route.Netns, route.Device = "", p.PodName
	return &route
}

// HostSysctls keep the kernel off the pod's IPv6 link: the host veth gets no link-local address that the pod could reach.
func HostSysctls() link.Sysctls { return link.Sysctls{DisableIPv6: link.On, AcceptRA: link.Off} }

// PodSettings are the sysctls of the pod's end, with those that are always set.
func (p *Pair) PodSettings() link.Sysctls {
	settings := p.PodSysctls
	settings.AcceptRA = link.Off
	if settings.DisableIPv6 == link.Leave {
		settings.DisableIPv6 = link.On
		if slices.ContainsFunc(p.PodAddresses, func(a netip.Prefix) bool { return a.Addr().Is6() }) {
			settings.DisableIPv6 = link.Off
		}
	}
	return settings
}

// Validate reports whether the pair can be created.
func (p *Pair) Validate() error {
	if err := errors.Join(link.ValidateName(p.HostName), link.ValidateName(p.PodName)); err != nil {
		return err
	}
	if p.Preplugged != "" {
		if err := link.ValidateName(ReceiverName(p.HostName)); err != nil {
			return err
		}
	}
	if p.Netns == "" {
		return fmt.Errorf("no namespace given: %w", link.ErrNoNamespace)
	}
	if len(p.Owner) > link.OwnerMax || strings.ContainsFunc(p.Owner, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return fmt.Errorf("owner %q is longer than %d bytes or has control characters", p.Owner, link.OwnerMax)
	}
	if len(p.PodMAC) != 0 && (len(p.PodMAC) != 6 || p.PodMAC[0]&1 != 0) {
		return fmt.Errorf("MAC %q is not a unicast Ethernet address", p.PodMAC)
	}
	for _, address := range p.PodAddresses {
		if !address.IsValid() || address.Addr().Is4In6() {
			return fmt.Errorf("invalid address %s", address)
		}
	}
	for _, route := range p.PodRoutes {
		if err := route.Validate(); err != nil {
			return err
		}
	}
	return nil
}
