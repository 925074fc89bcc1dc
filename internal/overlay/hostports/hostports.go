// Package hostports programs the host ports of the overlay's pods: rules of nftables on the node, and the connections that the node's
// kernel tracks for them. It keeps no state: the records of attachments have the ports.
package hostports

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/hostport"
	"weft.dev/weft/internal/nft"
	"weft.dev/weft/internal/overlay/host"
	"weft.dev/weft/internal/reconcile"
)

// Connections are the connections that the node's kernel tracks.
type Connections interface {
	// ForgetHostPorts flushes the UDP and SCTP connections to ports of the node, so that they follow the present rules. Until then they follow
	// the rules at their first packet, when the port may have been unused or another pod's.
	ForgetHostPorts(ports ...cni.HostPort) error
	// ForgetTranslatedTo flushes the connections that are translated to removed pods.
	ForgetTranslatedTo(pods ...netip.Addr) error
}

// Withdrawn are host ports that were withdrawn and may still be in effect.
type Withdrawn = map[reconcile.Owner]map[nft.Key]nft.Item

// Ports programs pods' host ports.
type Ports struct {
	// Loop holds the node's rules. Required.
	Loop *reconcile.Loop[nft.Key, nft.Item]
	// Kernel is the node's conntrack. Nil: no connection is flushed.
	Kernel Connections
	// Reserved returns what a port of the node is reserved for; "" if a pod may have it as a host port. Nil: none is reserved.
	Reserved func(port cni.HostPort) string
	// BootID is the node's boot: connections of former boots are gone.
	BootID string
	// Log gets failures that delay nothing. Required.
	Log *slog.Logger
}

// Requested returns the host ports in the runtime's request, or an error if one is reserved.
func (p *Ports) Requested(req *cni.Request) ([]cni.HostPort, error) {
	return hostport.Requested(req, p.Reserved, false) //nolint:wrapcheck // it names the pod
}

// Rules returns the rules for an attachment's host ports; nil if it has none.
func Rules(rec *attach.Record) map[nft.Key]nft.Item {
	if len(rec.HostPorts) == 0 || len(rec.Addresses) == 0 {
		return nil
	}
	return host.Published{Pod: rec.PodNamespace + "/" + rec.PodName, Addresses: []netip.Addr{rec.Addresses[0].Addr()}, Ports: rec.HostPorts}.Rules()
}

func owner(rec *attach.Record) reconcile.Owner { return reconcile.Owner(rec.Key().Owner()) }

// Set hands over the host ports of all attachments, without waiting. They depend only on the records, so afterwards each ADD and DEL
// programs its own.
func (p *Ports) Set(all map[attach.Key]attach.Record) {
	rules := map[reconcile.Owner]map[nft.Key]nft.Item{}
	for _, rec := range all {
		if len(rec.HostPorts) > 0 {
			rules[owner(&rec)] = Rules(&rec)
		}
	}
	p.Loop.Set(rules)
}

// Program programs an attachment's host ports, and returns once they are in effect. The caller holds the attachment's lock.
func (p *Ports) Program(ctx context.Context, rec *attach.Record) error {
	err := p.Loop.Apply(ctx, map[reconcile.Owner]map[nft.Key]nft.Item{owner(rec): Rules(rec)})
	if err == nil && p.Kernel != nil {
		err = p.Kernel.ForgetHostPorts(rec.HostPorts...)
	}
	if err != nil {
		return fmt.Errorf("host ports: %w", err)
	}
	return nil
}

// Withdraw withdraws the host ports of attachments, without waiting. The caller holds the attachments' locks.
func (p *Ports) Withdraw(recs ...attach.Record) Withdrawn {
	gone := Withdrawn{}
	for i := range recs {
		if len(recs[i].HostPorts) > 0 {
			gone[owner(&recs[i])] = nil
		}
	}
	if len(gone) > 0 {
		p.Loop.Set(gone)
	}
	return gone
}

// Remove waits until withdrawn host ports are out of effect, and flushes their connections. A failed flush does not delay the removal of
// the attachment: the connections end by themselves, because the pod no longer answers.
func (p *Ports) Remove(ctx context.Context, recs []attach.Record, gone Withdrawn) error {
	if len(gone) == 0 {
		return nil
	}
	if err := p.Loop.Apply(ctx, gone); err != nil {
		return err
	}
	if p.Kernel == nil {
		return nil
	}
	var pods []netip.Addr
	for i := range recs {
		if len(recs[i].HostPorts) == 0 || recs[i].BootID != p.BootID {
			continue
		}
		for _, address := range recs[i].Addresses {
			pods = append(pods, address.Addr())
		}
	}
	if len(pods) == 0 {
		return nil
	}
	if err := p.Kernel.ForgetTranslatedTo(pods...); err != nil {
		p.Log.Warn("conntrack flush of host ports failed; their connections last until they end", "error", err)
	}
	return nil
}
