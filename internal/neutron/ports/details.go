package ports

import (
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

// Details are what the record of an attachment stores: enough to restore and to remove it without the API server.
type Details struct {
	// Port is the port's UUID, and Slot its number on this node.
	Port string    `json:"port"`
	Slot host.Slot `json:"slot"`
	// Network is the Network's name; its namespace is the pod's.
	Network string `json:"network"`
	// Routes are the subnets' host routes, and DNS their name servers.
	Routes []Route  `json:"routes,omitempty"`
	DNS    []string `json:"dns,omitempty"`
}

// Route is a route of a subnet.
type Route struct {
	Destination netip.Prefix `json:"destination"`
	NextHop     netip.Addr   `json:"nextHop"`
}

// DetailsOf returns the details in the record. A record without them is broken.
func DetailsOf(rec *attach.Record) (Details, error) {
	var d Details
	if err := json.Unmarshal(rec.Details, &d); err != nil {
		return Details{}, fmt.Errorf("attachment %s: details of its record: %w", rec.Key(), err)
	}
	if d.Port == "" || !d.Slot.Valid() {
		return Details{}, fmt.Errorf("attachment %s: its record names no port: port %q, slot %d", rec.Key(), d.Port, d.Slot)
	}
	return d, nil
}

// Spec is a NeutronPort's spec, parsed.
type Spec struct {
	MAC       net.HardwareAddr
	Addresses []netip.Prefix
	Gateways  []netip.Addr
	MTU       int
	Routes    []Route
	DNS       []string
	wiring    wiring
}

// Parse returns the port's spec, or an error that names the field. The API server has validated what the CRD defines; the rest are values
// that no port of a working Neutron has.
func Parse(port *weftv1.NeutronPort) (Spec, error) {
	s := Spec{MTU: int(port.Spec.MTU), DNS: port.Spec.DNS}
	var err error
	if s.MAC, err = net.ParseMAC(port.Spec.MAC); err != nil {
		return Spec{}, fmt.Errorf("spec.MAC: %w", err)
	}
	if len(s.MAC) != 6 || s.MAC[0]&1 != 0 {
		return Spec{}, fmt.Errorf("spec.MAC: no interface can have %s", s.MAC)
	}
	s.wiring = wiring{network: port.Spec.Network.UID, mac: s.MAC.String()}
	for i := range port.Spec.Addresses {
		p, gateway, err := parseAddress(&port.Spec.Addresses[i])
		if err != nil {
			return Spec{}, fmt.Errorf("spec.addresses[%d]: %w", i, err)
		}
		s.Addresses = append(s.Addresses, p)
		if gateway.IsValid() {
			s.Gateways = append(s.Gateways, gateway)
		}
	}
	if len(s.Addresses) == 0 {
		return Spec{}, errors.New("spec.addresses: the port has no address")
	}
	for i, r := range port.Spec.Routes {
		dst, err := netip.ParsePrefix(r.Destination)
		if err != nil {
			return Spec{}, fmt.Errorf("spec.routes[%d].destination: %w", i, err)
		}
		hop, err := netip.ParseAddr(r.NextHop)
		if err != nil {
			return Spec{}, fmt.Errorf("spec.routes[%d].nextHop: %w", i, err)
		}
		if slices.ContainsFunc(s.Addresses, func(p netip.Prefix) bool { return p.Contains(hop) }) && dst.Bits() > 0 {
			s.Routes = append(s.Routes, Route{dst.Masked(), hop})
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
	if gateway.Is4() != addr.Is4() || gateway == addr || gateway.Zone() != "" || gateway.IsMulticast() || gateway.IsUnspecified() {
		return p, gateway, fmt.Errorf("gateway: %s is no gateway of %s", gateway, p)
	}
	return p, gateway, nil
}
