package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/hostport"
	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/neutron/host"
	"weft.dev/weft/internal/neutron/pipeline"
	"weft.dev/weft/internal/nft"
	"weft.dev/weft/internal/node"
	"weft.dev/weft/internal/reconcile"
)

// ruleItems are the node's rules of one owner, and rules those of several.
type (
	ruleItems = map[nft.Key]nft.Item
	rules     map[reconcile.Owner]ruleItems
)

// publisher makes pods' host ports reach them.
type publisher struct {
	node *node.Node
	log  *slog.Logger
}

// requested returns the host ports that a pod requests, unless one is reserved.
func (p *publisher) requested(req *cni.Request) ([]cni.HostPort, error) {
	return hostport.Requested(req, p.node.Reserved, false) //nolint:wrapcheck // it names the pod
}

// address4 is the IPv4 address to which host ports are translated.
func address4(rec *attach.Record) (netip.Addr, bool) {
	for _, p := range rec.Addresses {
		if p.Addr().Is4() {
			return p.Addr(), true
		}
	}
	return netip.Addr{}, false
}

// hostPortRules returns the rules of an attachment's host ports; nil if there are none.
func hostPortRules(rec *attach.Record) map[nft.Key]nft.Item {
	address, has := address4(rec)
	if len(rec.HostPorts) == 0 || !has {
		return nil
	}
	return host.Published{Pod: rec.PodNamespace + "/" + rec.PodName, Addresses: []netip.Addr{address}, Ports: rec.HostPorts}.Rules()
}

// publishedPorts returns the pod's ports to which host ports are translated, each once.
func publishedPorts(rec *attach.Record) []pipeline.Port {
	protocols := map[string]uint8{"tcp": unix.IPPROTO_TCP, "udp": unix.IPPROTO_UDP, "sctp": unix.IPPROTO_SCTP}
	var ports []pipeline.Port
	for _, p := range rec.HostPorts {
		if port := (pipeline.Port{Protocol: protocols[p.Protocol], Number: p.ContainerPort}); !slices.Contains(ports, port) {
			ports = append(ports, port)
		}
	}
	return ports
}

// publish makes an attachment's host ports reach it, and returns once they do.
func (p *publisher) publish(ctx context.Context, rec *attach.Record) error {
	if len(rec.HostPorts) == 0 {
		return nil
	}
	if err := p.node.Rules.Apply(ctx, rules{ownerOf(rec): hostPortRules(rec)}); err != nil {
		return fmt.Errorf("host ports: %w", err)
	}
	// A TCP client opens a new connection; with the other protocols, the former connection would continue, translated to no pod or to another.
	forgotten := map[string][]netip.AddrPort{}
	for _, port := range rec.HostPorts {
		forgotten[port.Protocol] = append(forgotten[port.Protocol], netip.AddrPortFrom(port.Address, port.Port))
	}
	return errors.Join(link.ForgetTo(unix.IPPROTO_UDP, forgotten["udp"]...), link.ForgetTo(unix.IPPROTO_SCTP, forgotten["sctp"]...))
}

// withdraw removes attachments' host ports, without waiting, and returns what it handed over.
func (p *publisher) withdraw(recs ...attach.Record) rules {
	gone := rules{}
	for i := range recs {
		if len(recs[i].HostPorts) > 0 {
			gone[ownerOf(&recs[i])] = nil
		}
	}
	if len(gone) > 0 {
		p.node.Rules.Set(gone)
	}
	return gone
}

// unpublish is withdraw, and returns once it is in effect. The connections end with the pods.
func (p *publisher) unpublish(ctx context.Context, recs []attach.Record) error {
	gone := p.withdraw(recs...)
	if len(gone) == 0 {
		return nil
	}
	if err := p.node.Rules.Apply(ctx, gone); err != nil {
		return fmt.Errorf("host ports: %w", err)
	}
	var addresses []netip.Addr
	for i := range recs {
		if address, has := address4(&recs[i]); has && len(recs[i].HostPorts) > 0 && recs[i].BootID == p.node.BootID {
			addresses = append(addresses, address)
		}
	}
	if len(addresses) == 0 {
		return nil
	}
	if err := link.ForgetLedTo(addresses...); err != nil {
		p.log.Warn("conntrack flush of host ports; their connections last until they end", "error", err)
	}
	return nil
}
