package service

import (
	"net/netip"
	"slices"
)

// Stale names connections that no longer go where they should. A zero Endpoint means those that were not translated.
type Stale struct {
	Protocol Protocol
	// IP is the virtual address, the zero Addr for a node port; Port is its port.
	IP       netip.Addr
	Port     uint16
	Endpoint netip.AddrPort
}

// Outdated returns the connections to forget when a Service's addresses change from before to after: of UDP, which has
// no end of its own. A client that goes on sending would keep an endpoint that is gone for good; and one that was
// rejected would be so for as long as it asks. A TCP connection finds out by itself. An endpoint that still serves
// keeps what it has.
func Outdated(before, after []VirtualAddress) []Stale {
	now := map[key]*VirtualAddress{}
	for i := range after {
		now[after[i].key()] = &after[i]
	}
	var list []Stale
	for i := range before {
		was, is := &before[i], now[before[i].key()]
		if was.Protocol != UDP {
			continue
		}
		var still []netip.AddrPort
		if is != nil {
			still = is.Serving
		}
		for _, gone := range was.Serving {
			if !contains(still, gone) {
				list = append(list, Stale{UDP, was.IP, was.Port, gone})
			}
		}
	}
	served := map[key]bool{}
	for i := range before {
		served[before[i].key()] = before[i].Verdict == Forward
	}
	for i := range after {
		if is := &after[i]; is.Protocol == UDP && is.Verdict == Forward && !served[is.key()] {
			list = append(list, Stale{Protocol: UDP, IP: is.IP, Port: is.Port})
		}
	}
	return slices.Clip(list)
}
