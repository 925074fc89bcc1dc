package service

import (
	"net/netip"
	"slices"
)

// Stale names connections whose translation is outdated. A zero Endpoint means connections that were not translated.
type Stale struct {
	Protocol Protocol
	// IP is the virtual address, the zero Addr for a node port; Port is its port.
	IP       netip.Addr
	Port     uint16
	Endpoint netip.AddrPort
}

// Outdated returns the connections to flush from conntrack when a Service's addresses change from before to after. They are UDP
// connections, because UDP has no end of connection. A client that keeps sending would stay with a removed endpoint, or stay rejected, as
// long as it sends. A TCP connection detects the change by itself. Connections to an endpoint that still serves are kept.
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
