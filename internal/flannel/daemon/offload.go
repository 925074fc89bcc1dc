package daemon

import (
	"context"
	"log/slog"
	"net/netip"
	"sync"

	"github.com/vishvananda/netlink"

	"weft.dev/weft/internal/flannel/fabric"
	"weft.dev/weft/internal/flannel/lease"
	"weft.dev/weft/internal/flannel/netconf"
	"weft.dev/weft/internal/flannel/probe"
)

// probedPeers is the maximum number of peers that are probed: a fault of this node shows with most of them.
const probedPeers = 16

// offload tests the checksum offload of a generation's VXLAN devices, and turns it off where it is faulty.
type offload struct {
	log     *slog.Logger
	backend netconf.Backend
	// leases passes the accepted leases to a function until it returns false.
	leases func(use func(lease.Lease) bool)
	// ask has one value when peers have to be probed.
	ask chan struct{}

	// mu guards what follows.
	mu sync.Mutex
	// index is that of the device probed last, and asked the addresses of peers that have answered since.
	index int
	asked map[netip.Addr]bool
}

// due requests a probe of the peers that have not answered yet; of all peers if the device was created again, because then its offload is
// on again.
func (o *offload) due() {
	b, ok := o.backend.(netconf.VXLAN)
	if !ok {
		return
	}
	for _, name := range fabric.Devices(b) {
		link, err := netlink.LinkByName(name)
		if err != nil {
			continue
		}
		o.mu.Lock()
		if index := link.Attrs().Index; index != o.index {
			o.index, o.asked = index, map[netip.Addr]bool{}
		}
		o.mu.Unlock()
		break
	}
	select {
	case o.ask <- struct{}{}:
	default: // already requested
	}
}

// run probes the devices whenever it is due, until ctx ends.
func (o *offload) run(ctx context.Context) {
	b, ok := o.backend.(netconf.VXLAN)
	if !ok {
		return
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-o.ask:
		}
		for i, device := range fabric.Devices(b) {
			for _, peer := range o.tunnelAddresses(i) {
				if ctx.Err() == nil {
					o.probePeer(ctx, device, peer)
				}
			}
		}
	}
}

func (o *offload) probePeer(ctx context.Context, device string, peer netip.Addr) {
	o.mu.Lock()
	asked := o.asked
	o.mu.Unlock()
	verdict, err := probe.Test(ctx, peer)
	if err != nil {
		o.log.Debug("test of checksum offload failed", "peer", peer, "error", err)
	}
	if err != nil || verdict == probe.Silent {
		return
	}
	if verdict == probe.Faulty {
		o.cure(ctx, device, peer)
	} else {
		o.log.Debug("checksum offload of the tunnel is sound", "device", device, "peer", peer)
	}
	o.mu.Lock()
	asked[peer] = true
	o.mu.Unlock()
}

// tunnelAddresses returns the tunnel addresses of some peers that have not answered yet, of IPv4 or, for 1, of IPv6.
func (o *offload) tunnelAddresses(six int) []netip.Addr {
	o.mu.Lock()
	defer o.mu.Unlock()
	var out []netip.Addr
	if len(o.asked) >= probedPeers {
		return nil
	}
	o.leases(func(l lease.Lease) bool {
		subnet, data := l.Subnet, l.Data
		if six == 1 {
			subnet, data = l.Subnet6, l.Data6
		}
		if _, ok := data.(lease.VXLAN); ok && subnet.IsValid() && !o.asked[subnet.Addr()] {
			out = append(out, subnet.Addr())
		}
		return len(out) < probedPeers
	})
	return out
}

// cure turns the offload off, and on again if that changes nothing: then something else blocks TCP.
func (o *offload) cure(ctx context.Context, device string, peer netip.Addr) {
	log := o.log.With("device", device, "peer", peer)
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
