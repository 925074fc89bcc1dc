package egressips

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// conflictInterval is the delay after which an address in use by a foreign host is probed again: no event reports that the host gives it up.
const conflictInterval = time.Minute

// egressProbes prevent this node from taking an egress IP that a host outside the cluster uses. An address is probed before the node holds
// it.
type egressProbes struct {
	// probe returns the MAC address of the foreign host that has an address; nil if no host or one of the nodes has it. Nil: nothing is
	// probed.
	probe func(device string, address netip.Addr, nodes []netip.Addr) (net.HardwareAddr, error)
	// holds reports whether the node has an egress IP already. After a restart, such an address is not given up for a probe.
	holds func(address netip.Addr) bool
	// changed is called after each probe. It must not block.
	changed func()
	// after is time.AfterFunc.
	after func(time.Duration, func()) *time.Timer

	mu       sync.Mutex
	verdicts map[netip.Addr]*egressVerdict
}

// egressVerdict is the result of the probe of an address. Until it is known, no traffic leaves through the address.
type egressVerdict struct {
	// device and nodes are for the next probe.
	device  string
	nodes   []netip.Addr
	known   bool
	foreign net.HardwareAddr
	err     error
}

// free reports whether this node may hold an address. An error says why it may not. False without an error: not known yet; changed will be
// called.
func (p *egressProbes) free(device string, address netip.Addr, nodes []netip.Addr) (bool, error) {
	if p.probe == nil {
		return true, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	v := p.verdicts[address]
	if v == nil {
		v = &egressVerdict{known: p.holds(address)}
		p.verdicts[address] = v
		if !v.known {
			go p.look(v, address)
		}
	}
	v.device, v.nodes = device, nodes
	switch {
	case v.err != nil:
		return false, fmt.Errorf("egressIPs: %s could not be probed: %w", address, v.err)
	case v.foreign != nil:
		return false, fmt.Errorf("egressIPs: %s is in use by a host that is not a node, with the MAC address %s: choose an unused address", address, v.foreign)
	}
	return v.known, nil
}

// refuses reports whether the last probe of an address failed, or found a foreign host.
func (p *egressProbes) refuses(address netip.Addr) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	v := p.verdicts[address]
	return v != nil && (v.foreign != nil || v.err != nil)
}

// refusal returns why this node may not hold an address; nil if it may, or if that is not known. reported is the reason in the node's status,
// which counts until the result of a probe is known; "" if the address is not refused there.
func (p *egressProbes) refusal(device string, address netip.Addr, nodes []netip.Addr, reported string) error {
	free, err := p.free(device, address, nodes)
	if !free && err == nil && reported != "" {
		return errors.New(reported)
	}
	return err
}

// look probes an address. While a foreign host uses it, or the probe fails, it is probed again, until the address is no longer kept.
func (p *egressProbes) look(v *egressVerdict, address netip.Addr) {
	p.mu.Lock()
	device, nodes, kept := v.device, v.nodes, p.verdicts[address] == v
	p.mu.Unlock()
	if !kept {
		return
	}
	foreign, err := p.probe(device, address, nodes)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.verdicts[address] != v {
		return
	}
	v.known, v.foreign, v.err = true, foreign, err
	if foreign != nil || err != nil {
		p.after(conflictInterval, func() { p.look(v, address) })
	}
	p.changed()
}

// keep deletes the verdicts of all addresses except these. An address that comes back is probed anew.
func (p *egressProbes) keep(addresses map[netip.Addr]struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.verdicts, func(address netip.Addr, _ *egressVerdict) bool {
		_, kept := addresses[address]
		return !kept
	})
}

// hostAddresses returns the node addresses of peers, sorted.
func hostAddresses(peers map[string]peer) []netip.Addr {
	var addresses []netip.Addr
	for _, at := range peers {
		addresses = append(addresses, at.node)
	}
	slices.SortFunc(addresses, netip.Addr.Compare)
	return addresses
}
