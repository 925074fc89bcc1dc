package overlay

import (
	"context"
	"net/netip"
	"slices"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/nft"
	"weft.dev/weft/internal/overlay/host"
	"weft.dev/weft/internal/reconcile"
)

// HostConnections are those that the node's own kernel tracks.
type HostConnections interface {
	// ForgetHostPorts forgets the connections to ports of the node by UDP and SCTP: they go on as the rules say now, and not as they
	// did when the first packet came, which may have been for nobody or for another pod.
	ForgetHostPorts(ports ...cni.HostPort) error
	// ForgetTranslatedTo forgets the connections that are translated to pods which go.
	ForgetTranslatedTo(pods ...netip.Addr) error
}

// ReservedPort is a port of the node that no pod may have.
type ReservedPort struct {
	Port cni.HostPort
	// For says whose it is: "the agent's health and metrics".
	For string
}

// hostPortRules returns the host ports of an attachment; nil if there are none.
func hostPortRules(rec *attach.Record) map[nft.Key]nft.Item {
	if len(rec.HostPorts) == 0 || len(rec.Addresses) == 0 {
		return nil
	}
	return host.Published{Pod: rec.PodNamespace + "/" + rec.PodName, Address: rec.Addresses[0].Addr(), Ports: rec.HostPorts}.Rules()
}

// setHostPorts hands over the host ports of all attachments, without waiting. They depend on nothing but the records: afterwards each
// ADD and each DEL sees to its own.
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

// programHostPorts has an attachment's host ports lead to it, and returns once they do. The caller holds its lock.
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

// withdrawHostPorts has host ports lead to attachments no more, without waiting. The caller holds their locks.
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

// removeHostPorts waits until withdrawn host ports lead to attachments no more, and forgets who was led there. Those whom the kernel does
// not forget do not keep the attachment: they end by themselves, as the pod answers no more.
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

// hostPorts returns the host ports that a runtime asks for, unless one is kept from pods.
func (n *Network) hostPorts(req *cni.Request) ([]cni.HostPort, error) {
	if req.NetConf == nil {
		return nil, nil
	}
	ports, err := cni.ParsePortMappings(req.NetConf.RuntimeConfig.PortMappings)
	if err != nil {
		return nil, err
	}
	for _, port := range ports {
		if i := slices.IndexFunc(n.opts.Reserved, func(r ReservedPort) bool { return r.Port.Overlaps(port) }); i >= 0 {
			return nil, cni.Errorf(cni.CodeInvalidConfig, "pod %s/%s cannot have host port %s: it is reserved for %s; use another one",
				req.Args.PodNamespace, req.Args.PodName, port, n.opts.Reserved[i].For)
		}
	}
	return ports, nil
}
