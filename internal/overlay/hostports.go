package overlay

import (
	"context"
	"net/netip"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/nft"
	"weft.dev/weft/internal/overlay/host"
	"weft.dev/weft/internal/reconcile"
)

// HostConnections are the connections that the node's kernel tracks.
type HostConnections interface {
	// ForgetHostPorts flushes the UDP and SCTP connections to ports of the node, so that they follow the present rules. Until then they follow
	// the rules at their first packet, when the port may have been unused or another pod's.
	ForgetHostPorts(ports ...cni.HostPort) error
	// ForgetTranslatedTo flushes the connections that are translated to removed pods.
	ForgetTranslatedTo(pods ...netip.Addr) error
}

// hostPortRules returns the rules for an attachment's host ports; nil if it has none.
func hostPortRules(rec *attach.Record) map[nft.Key]nft.Item {
	if len(rec.HostPorts) == 0 || len(rec.Addresses) == 0 {
		return nil
	}
	return host.Published{Pod: rec.PodNamespace + "/" + rec.PodName, Address: rec.Addresses[0].Addr(), Ports: rec.HostPorts}.Rules()
}

// setHostPorts hands over the host ports of all attachments, without waiting. They depend only on the records, so afterwards each ADD and
// DEL programs its own.
func (n *Network) setHostPorts() {
	n.opening.Lock()
	defer n.opening.Unlock()
	rules := map[reconcile.Owner]map[nft.Key]nft.Item{}
	for key, rec := range n.live {
		if len(rec.HostPorts) > 0 {
			rules[owner(key)] = hostPortRules(&rec)
		}
	}
	n.engines.Rules.Set(rules)
}

// programHostPorts programs an attachment's host ports, and returns once they are in effect. The caller holds the attachment's lock.
func (n *Network) programHostPorts(ctx context.Context, rec *attach.Record) error {
	if len(rec.HostPorts) == 0 {
		return nil
	}
	ctx, done := startCommit(ctx, stepHostPorts)
	err := n.engines.Rules.Apply(ctx, map[reconcile.Owner]map[nft.Key]nft.Item{owner(rec.Key()): hostPortRules(rec)})
	if err == nil && n.engines.Kernel != nil {
		err = n.engines.Kernel.ForgetHostPorts(rec.HostPorts...)
	}
	done(err)
	return named("host ports", err)
}

// withdrawHostPorts withdraws the host ports of attachments, without waiting. The caller holds the attachments' locks.
func (n *Network) withdrawHostPorts(recs ...attach.Record) map[reconcile.Owner]map[nft.Key]nft.Item {
	gone := map[reconcile.Owner]map[nft.Key]nft.Item{}
	for i := range recs {
		if len(recs[i].HostPorts) > 0 {
			gone[owner(recs[i].Key())] = nil
		}
	}
	if len(gone) > 0 {
		n.engines.Rules.Set(gone)
	}
	return gone
}

// removeHostPorts waits until withdrawn host ports are out of effect, and flushes their connections. A failed flush does not delay the
// removal of the attachment: the connections end by themselves, because the pod no longer answers.
func (n *Network) removeHostPorts(ctx context.Context, recs []attach.Record, gone map[reconcile.Owner]map[nft.Key]nft.Item) error {
	if len(gone) == 0 {
		return nil
	}
	if err := n.engines.Rules.Apply(ctx, gone); err != nil {
		return err
	}
	if n.engines.Kernel == nil {
		return nil
	}
	var pods []netip.Addr
	for i := range recs {
		if len(recs[i].HostPorts) == 0 || recs[i].BootID != n.opts.BootID {
			continue
		}
		for _, address := range recs[i].Addresses {
			pods = append(pods, address.Addr())
		}
	}
	if len(pods) == 0 {
		return nil
	}
	if err := n.engines.Kernel.ForgetTranslatedTo(pods...); err != nil {
		n.opts.Log.Warn("conntrack flush of host ports failed; their connections last until they end", "error", err)
	}
	return nil
}

// hostPorts returns the host ports in the runtime's request, or an error if one is reserved.
func (n *Network) hostPorts(req *cni.Request) ([]cni.HostPort, error) {
	if req.NetConf == nil {
		return nil, nil
	}
	ports, err := cni.ParsePortMappings(req.NetConf.RuntimeConfig.PortMappings)
	if err != nil {
		return nil, err
	}
	if n.opts.Reserved == nil {
		return ports, nil
	}
	for _, port := range ports {
		if why := n.opts.Reserved(port); why != "" {
			return nil, cni.Errorf(cni.CodeInvalidConfig, "pod %s/%s cannot have host port %s: it is reserved for %s; use another one",
				req.Args.PodNamespace, req.Args.PodName, port, why)
		}
	}
	return ports, nil
}
