package daemon

import (
	"context"
	"net/netip"

	"github.com/vishvananda/netlink"

	"weft.dev/weft/internal/flannel/fabric"
	"weft.dev/weft/internal/flannel/lease"
	"weft.dev/weft/internal/flannel/netconf"
	"weft.dev/weft/internal/flannel/probe"
)

// probedPeers is the maximum number of peers that are probed: a fault of this node shows with most of them.
const probedPeers = 16

// offload is the test of the VXLAN devices' checksum offload.
type offload struct {
	// ask has one value when peers have to be probed.
	ask chan struct{}
	// index is that of the device probed last, and asked the addresses of peers that have answered since.
	index int
	asked map[netip.Addr]bool
}

// due requests a probe of the peers that have not answered yet; of all peers if the device was created again, because then its offload is
// on again.
func (d *Daemon) due(p *presence) {
	b, ok := p.view.Backend.(netconf.VXLAN)
	if !ok {
		return
	}
	for _, name := range fabric.Devices(b) {
		link, err := netlink.LinkByName(name)
		if err != nil {
			continue
		}
		d.mu.Lock()
		if index := link.Attrs().Index; index != p.offload.index {
			p.offload.index, p.offload.asked = index, map[netip.Addr]bool{}
		}
		d.mu.Unlock()
		break
	}
	select {
	case p.offload.ask <- struct{}{}:
	default: // already requested
	}
}

// probeOffload probes the devices whenever it is due, and turns their offload off if that fixes the fault.
func (d *Daemon) probeOffload(ctx context.Context, p *presence) {
	b, ok := p.view.Backend.(netconf.VXLAN)
	if !ok {
		return
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.offload.ask:
		}
		for i, device := range fabric.Devices(b) {
			for _, peer := range d.tunnelAddresses(p, i) {
				if ctx.Err() == nil {
					d.probePeer(ctx, p, device, peer)
				}
			}
		}
	}
}

func (d *Daemon) probePeer(ctx context.Context, p *presence, device string, peer netip.Addr) {
	d.mu.Lock()
	asked := p.offload.asked
	d.mu.Unlock()
	verdict, err := probe.Test(ctx, peer)
	if err != nil {
		d.options.Log.Debug("test of checksum offload failed", "peer", peer, "error", err)
	}
	if err != nil || verdict == probe.Silent {
		return
	}
	if verdict == probe.Faulty {
		d.cure(ctx, device, peer)
	} else {
		d.options.Log.Debug("checksum offload of the tunnel is sound", "device", device, "peer", peer)
	}
	d.mu.Lock()
	asked[peer] = true
	d.mu.Unlock()
}

// tunnelAddresses returns the tunnel addresses of some peers that have not answered yet, of IPv4 or, for 1, of IPv6.
func (d *Daemon) tunnelAddresses(p *presence, six int) []netip.Addr {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []netip.Addr
	if len(p.offload.asked) >= probedPeers {
		return nil
	}
	for _, l := range p.leases.Accepted() { // in the map's random order: sorting thousands would delay updates
		if len(out) == probedPeers {
			break
		}
		subnet, data := l.Subnet, l.Data
		if six == 1 {
			subnet, data = l.Subnet6, l.Data6
		}
		if _, ok := data.(lease.VXLAN); ok && subnet.IsValid() && !p.offload.asked[subnet.Addr()] {
			out = append(out, subnet.Addr())
		}
	}
	return out
}

// cure turns the offload off, and on again if that changes nothing: then something else blocks TCP.
func (d *Daemon) cure(ctx context.Context, device string, peer netip.Addr) {
	log := d.options.Log.With("device", device, "peer", peer)
	if err := probe.SetOffload(device, false); err != nil {
		log.Warn("peer answers ICMP and not TCP; checksum offload cannot be turned off", "error", err)
		return
	}
	verdict, err := probe.Test(ctx, peer)
	if err == nil && verdict == probe.Sound {
		log.Warn("checksum offload of the tunnel is faulty on this node and was turned off: peers answered ICMP and not TCP")
		return
	}
	if err := probe.SetOffload(device, true); err != nil {
		log.Warn("checksum offload cannot be turned on again", "error", err)
	}
	log.Info("peer answers ICMP and not TCP, with checksum offload and without; a firewall between the nodes?")
}
