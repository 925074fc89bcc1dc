package service

import (
	"net/netip"
	"slices"

	"weft.dev/weft/internal/transport"
)

// Stale names connections whose translation is outdated. A zero Endpoint means connections that were not translated.
type Stale struct {
	Protocol transport.Protocol
	// IP is the virtual address, the zero Addr for a node port; Port is its port.
	IP       netip.Addr
	Port     uint16
	Endpoint netip.AddrPort
}

// Outdated returns the connections to flush from conntrack when a Service's addresses change from before to after. They are UDP
// connections, because UDP has no end of connection. A client that keeps sending would stay with a removed endpoint as long as it sends, or
// stay rejected, also when the Service is idled, and would wake no pods. A TCP connection detects the change by itself. Connections to an
// endpoint that still serves are kept.
func Outdated(before, after []VirtualAddress) []Stale {
	now := map[key]*VirtualAddress{}
	for i := range after {
		now[after[i].key()] = &after[i]
	}
	var list []Stale
	for i := range before {
		was, is := &before[i], now[before[i].key()]
		if was.Protocol != transport.UDP {
			continue
		}
		var still []netip.AddrPort
		if is != nil {
			still = is.Serving
		}
		for _, gone := range was.Serving {
			if !contains(still, gone) {
				list = append(list, Stale{transport.UDP, was.IP, was.Port, gone})
			}
		}
	}
	verdicts := map[key]Verdict{}
	for i := range before {
		verdicts[before[i].key()] = before[i].Verdict
	}
	for i := range after {
		is := &after[i]
		was, known := verdicts[is.key()]
		served, rejected := known && was == Forward, !known || was == Reject
		if is.Protocol == transport.UDP && (is.Verdict == Forward && !served || is.Verdict == Wake && rejected) {
			list = append(list, Stale{Protocol: transport.UDP, IP: is.IP, Port: is.Port})
		}
	}
	return slices.Clip(list)
}
