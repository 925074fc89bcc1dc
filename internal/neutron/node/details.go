package node

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	weftv1 "weft.dev/weft/api/weft/v1"
	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/neutron/host"
	"weft.dev/weft/internal/neutron/pipeline"
)

// details are what the record of an attachment stores: enough to restore and to remove it without the API server.
type details struct {
	// Port is the port's UUID, and Slot its number on this node.
	Port string    `json:"port"`
	Slot host.Slot `json:"slot"`
	// Network is the Network's name; its namespace is the pod's.
	Network string `json:"network"`
	// Routes are the subnets' host routes, and DNS their name servers.
	Routes []route  `json:"routes,omitempty"`
	DNS    []string `json:"dns,omitempty"`
}

type route struct {
	Destination netip.Prefix `json:"destination"`
	NextHop     netip.Addr   `json:"nextHop"`
}

// detailsOf returns the details in the record. A record without them is broken.
func detailsOf(rec *attach.Record) (details, error) {
	var d details
	if err := json.Unmarshal(rec.Details, &d); err != nil {
		return details{}, fmt.Errorf("attachment %s: details of its record: %w", rec.Key(), err)
	}
	if d.Port == "" || !d.Slot.Valid() {
		return details{}, fmt.Errorf("attachment %s: its record names no port: port %q, slot %d", rec.Key(), d.Port, d.Slot)
	}
	return d, nil
}

// spec is a NeutronPort's spec, parsed.
type spec struct {
	mac       net.HardwareAddr
	addresses []netip.Prefix
	gateways  []netip.Addr
	mtu       int
	routes    []route
	dns       []string
	wiring    wiring
}

// parse returns the port's spec, or an error that names the field. The API server has validated what the CRD defines; the rest are values
// that no port of a working Neutron has.
func parse(port *weftv1.NeutronPort) (spec, error) {
	s := spec{mtu: int(port.Spec.MTU), dns: port.Spec.DNS}
	var err error
	if s.mac, err = net.ParseMAC(port.Spec.MAC); err != nil {
		return spec{}, fmt.Errorf("spec.mac: %w", err)
	}
	s.wiring = wiring{network: port.Spec.Network.UID, mac: s.mac.String()}
	for i := range port.Spec.Addresses {
		p, gateway, err := parseAddress(&port.Spec.Addresses[i])
		if err != nil {
			return spec{}, fmt.Errorf("spec.addresses[%d]: %w", i, err)
		}
		s.addresses = append(s.addresses, p)
		if gateway.IsValid() {
			s.gateways = append(s.gateways, gateway)
		}
	}
	if len(s.addresses) == 0 {
		return spec{}, errors.New("spec.addresses: the port has no address")
	}
	for i, r := range port.Spec.Routes {
		dst, err := netip.ParsePrefix(r.Destination)
		if err != nil {
			return spec{}, fmt.Errorf("spec.routes[%d].destination: %w", i, err)
		}
		hop, err := netip.ParseAddr(r.NextHop)
		if err != nil {
			return spec{}, fmt.Errorf("spec.routes[%d].nextHop: %w", i, err)
		}
		if slices.ContainsFunc(s.addresses, func(p netip.Prefix) bool { return p.Contains(hop) }) && dst.Bits() > 0 {
			s.routes = append(s.routes, route{dst.Masked(), hop})
		}
	}
	return s, nil
}

func parseAddress(a *weftv1.NeutronPortAddress) (p netip.Prefix, gateway netip.Addr, err error) {
	if p, err = netip.ParsePrefix(a.Address); err != nil {
		return p, gateway, fmt.Errorf("address: %w", err)
	}
	addr := p.Addr()
	if !addr.IsGlobalUnicast() || addr.Is4In6() || p.Masked().Overlaps(pipeline.HostAddresses()) {
		return p, gateway, fmt.Errorf("address: a pod cannot have %s", a.Address)
	}
	if a.Gateway == "" {
		return p, gateway, nil
	}
	if gateway, err = netip.ParseAddr(a.Gateway); err != nil {
		return p, gateway, fmt.Errorf("gateway: %w", err)
	}
	if gateway.Is4() != addr.Is4() || gateway == addr {
		return p, gateway, fmt.Errorf("gateway: %s is no gateway of %s", gateway, p)
	}
	return p, gateway, nil
}

// vethName returns the name of an attachment's host veth. It depends on the attachment alone: the next pod on a port has another one. A
// limited pod's is shorter, because link.Preplugged derives further names from it.
func vethName(key attach.Key, limited bool) string {
	sum := sha256.Sum256([]byte(key.String()))
	if limited {
		const digits = 5
		return "wb" + hex.EncodeToString(sum[:digits])
	}
	return "wp" + hex.EncodeToString(sum[:6])
}
