// Package publish makes pods reachable at their host ports, for any network: it maintains the host ports of attachments in the node's
// rules, and flushes the connections that the node's kernel tracks for them. It keeps no state: the records of attachments have the ports.
package publish

import (
	"cmp"
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
	"weft.dev/weft/internal/nft"
	"weft.dev/weft/internal/reconcile"
)

// Items are rules of the node.
type Items = map[nft.Key]nft.Item

// Tracked are the connections that the node's kernel tracks: a conntrack.Table.
type Tracked interface {
	// FlushTo flushes the connections of one protocol to ports of the node. A port without an address is one at all of the node's addresses;
	// 0.0.0.0 and :: are all of a family.
	FlushTo(protocol uint8, ports ...netip.AddrPort) error
	// FlushTranslatedTo flushes the connections that are translated to one of the addresses.
	FlushTranslatedTo(addresses ...netip.Addr) error
}

// Options are what differs between networks.
type Options struct {
	// Rules holds the node's rules. Required.
	Rules *reconcile.Loop[nft.Key, nft.Item]
	// Compile returns the rules for a pod's host ports. Required.
	Compile func(*hostport.Published) Items
	// IPv6 says that host ports lead to pods by IPv6 too. If not, a port at an IPv6 address is refused.
	IPv6 bool
	// Reserved returns what a port of the node is reserved for; "" if a pod may have it as a host port. Nil: none is reserved.
	Reserved func(port cni.HostPort) string
	// Tracked is the node's conntrack. Nil: no connection is flushed.
	Tracked Tracked
	// BootID is the node's boot: connections of former boots are gone.
	BootID string
	// Attached returns the network's attachments. Errors name the pod that has a port. Nil: they name its attachment.
	Attached func() []attach.Record
	// Conflict is called by Report for each attachment that lacks a host port because another one has it. Nil: it is only logged.
	Conflict func(rec *attach.Record, why error)
	// Log receives conflicts, and failures that no caller gets. Default: discarded.
	Log *slog.Logger
}

// Publisher publishes pods' host ports.
type Publisher struct{ opts Options }

// New returns a publisher. It changes nothing before it is called.
func New(opts Options) *Publisher {
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	return &Publisher{opts}
}

// Requested returns the host ports in a runtime's request, or an error for the runtime, which names the pod. A port at an address of
// a family of which the pod has no address is refused. Without addresses, which are chosen later then, this is not checked.
func (p *Publisher) Requested(req *cni.Request, addresses ...netip.Prefix) ([]cni.HostPort, error) {
	if req.NetConf == nil {
		return nil, nil
	}
	pod := req.Args.PodNamespace + "/" + req.Args.PodName
	ports, err := cni.ParsePortMappings(req.NetConf.RuntimeConfig.PortMappings, p.opts.IPv6)
	if err != nil {
		return nil, fmt.Errorf("pod %s: %w", pod, err)
	}
	for _, port := range ports {
		if p.opts.Reserved != nil {
			if why := p.opts.Reserved(port); why != "" {
				return nil, cni.Errorf(cni.CodeInvalidConfig, "pod %s cannot have host port %s: it is reserved for %s; use another one", pod, port, why)
			}
		}
		reachable := func(address netip.Prefix) bool { return address.Addr().Is4() == port.Address.Is4() }
		if port.Address.IsValid() && len(addresses) > 0 && !slices.ContainsFunc(addresses, reachable) {
			return nil, cni.Errorf(cni.CodeUnsupportedField, "pod %s cannot have host port %s: it has no address of that family; "+
				"leave hostIP out, or name an address of the node of the pod's family", pod, port)
		}
	}
	return ports, nil
}

func ownerOf(rec *attach.Record) reconcile.Owner { return reconcile.Owner(rec.Key().Owner()) }

func podOf(rec *attach.Record) string { return rec.PodNamespace + "/" + rec.PodName }

// Fragment returns the rules for an attachment's host ports; nil if it has none. They lead to the pod's first address of each family.
func (p *Publisher) Fragment(rec *attach.Record) Items {
	if len(rec.HostPorts) == 0 {
		return nil
	}
	of := hostport.Published{Pod: podOf(rec), Ports: rec.HostPorts}
	for _, prefix := range rec.Addresses {
		address := prefix.Addr()
		another := slices.ContainsFunc(of.Addresses, func(a netip.Addr) bool { return a.Is4() == address.Is4() })
		if !another && (address.Is4() || p.opts.IPv6) {
			of.Addresses = append(of.Addresses, address)
		}
	}
	if len(of.Addresses) == 0 {
		return nil
	}
	return p.opts.Compile(&of)
}

// Restore hands over the host ports of attachments when the agent starts, without waiting: a failure of one pod's ports delays no
// other. They depend only on the records, so afterwards each ADD and DEL programs its own. It does not block: call it under the lock that
// also guards the list of closed attachments, so that it restores none that a DEL has closed. Report is for all attachments together.
func (p *Publisher) Restore(recs ...attach.Record) {
	fragments := map[reconcile.Owner]Items{}
	for i := range recs {
		if fragment := p.Fragment(&recs[i]); fragment != nil {
			fragments[ownerOf(&recs[i])] = fragment
		}
	}
	if len(fragments) > 0 {
		p.opts.Rules.Set(fragments)
	}
}

// Report reports the conflicts among all attachments that were restored.
func (p *Publisher) Report(all []attach.Record) {
	for _, c := range p.Conflicts(all) {
		p.opts.Log.Warn("a host port stays closed", "attachment", c.Record.Key().String(), "error", c.Err)
		if p.opts.Conflict != nil {
			p.opts.Conflict(c.Record, c.Err)
		}
	}
}

// Conflict is a host port that an attachment does not have, because another one has it.
type Conflict struct {
	Record *attach.Record
	// Err names the pod, the port, and the pod that has it.
	Err error
}

// Conflicts returns the conflicts among attachments, at most one for each. An ADD is refused before there is one; records of an earlier
// release may have some. The attachment whose name sorts first has the port, as in the loop that holds the rules; once it ends, the next has.
func (p *Publisher) Conflicts(all []attach.Record) []Conflict {
	var sorted []*attach.Record
	for i := range all {
		if len(all[i].HostPorts) > 0 {
			sorted = append(sorted, &all[i])
		}
	}
	slices.SortFunc(sorted, func(a, b *attach.Record) int { return cmp.Compare(ownerOf(a), ownerOf(b)) })
	holders := map[nft.Key]*attach.Record{}
	values := map[nft.Key]nft.Item{}
	var found []Conflict
	for _, rec := range sorted {
		var holder *attach.Record
		for key, item := range p.Fragment(rec) {
			switch {
			case holders[key] == nil:
				holders[key], values[key] = rec, item
			case !values[key].Equal(item) && (holder == nil || ownerOf(holders[key]) < ownerOf(holder)):
				holder = holders[key]
			}
		}
		if holder != nil {
			found = append(found, Conflict{rec, taken(rec, holder)})
		}
	}
	return found
}

// taken returns the error for a host port of rec that the attachment holder has.
func taken(rec, holder *attach.Record) error {
	for _, port := range rec.HostPorts {
		if slices.ContainsFunc(holder.HostPorts, port.Overlaps) {
			return cni.Errorf(cni.CodeTryAgainLater, "pod %s cannot have host port %s of this node: pod %s has it", podOf(rec), port, podOf(holder))
		}
	}
	return cni.Errorf(cni.CodeTryAgainLater, "pod %s cannot have its host ports on this node: pod %s has one of them", podOf(rec), podOf(holder))
}

// Publish publishes an attachment's host ports, and returns once they are in effect. The caller holds the attachment's lock.
func (p *Publisher) Publish(ctx context.Context, rec *attach.Record) error {
	if len(rec.HostPorts) == 0 {
		return nil
	}
	err := p.opts.Rules.Apply(ctx, map[reconcile.Owner]Items{ownerOf(rec): p.Fragment(rec)})
	var conflict *reconcile.ConflictError
	if errors.As(err, &conflict) && p.opts.Attached != nil {
		for _, other := range p.opts.Attached() {
			if ownerOf(&other) == conflict.Holder {
				return taken(rec, &other)
			}
		}
	}
	if err == nil {
		err = p.moved(rec.HostPorts)
	}
	if err != nil {
		return fmt.Errorf("host ports: %w", err)
	}
	return nil
}

// moved flushes the UDP and SCTP connections to ports of the node, so that they follow the present rules. Until then they follow the rules
// that their first packet met, when the port may have been unused or another pod's. A TCP client opens a new connection.
func (p *Publisher) moved(ports []cni.HostPort) error {
	if p.opts.Tracked == nil {
		return nil
	}
	at := map[string][]netip.AddrPort{}
	for _, port := range ports {
		address := port.Address
		if !address.IsValid() && !p.opts.IPv6 {
			address = netip.IPv4Unspecified()
		}
		at[port.Protocol] = append(at[port.Protocol], netip.AddrPortFrom(address, port.Port))
	}
	var errs []error
	for _, protocol := range []struct {
		name   string
		number uint8
	}{{"udp", unix.IPPROTO_UDP}, {"sctp", unix.IPPROTO_SCTP}} {
		if len(at[protocol.name]) > 0 {
			errs = append(errs, p.opts.Tracked.FlushTo(protocol.number, at[protocol.name]...))
		}
	}
	return errors.Join(errs...)
}

// Withdrawn are host ports that were withdrawn and may still be in effect.
type Withdrawn map[reconcile.Owner]Items

// Withdraw withdraws attachments' host ports, without waiting: another pod may have them at once. See Await and Unpublish. The caller holds
// the attachments' locks.
func (p *Publisher) Withdraw(recs ...attach.Record) Withdrawn {
	gone := Withdrawn{}
	for i := range recs {
		if len(recs[i].HostPorts) > 0 {
			gone[ownerOf(&recs[i])] = nil
		}
	}
	if len(gone) > 0 {
		p.opts.Rules.Set(gone)
	}
	return gone
}

// Await returns once no rule leads to what was withdrawn.
func (p *Publisher) Await(ctx context.Context, gone Withdrawn) error {
	if len(gone) == 0 {
		return nil
	}
	if err := p.opts.Rules.Apply(ctx, gone); err != nil {
		return fmt.Errorf("host ports: %w", err)
	}
	return nil
}

// Unpublish withdraws attachments' host ports, returns once no rule leads to them, and flushes the connections that are translated to the
// pods. A failed flush does not delay the removal of an attachment: the connections end by themselves, because the pod no longer answers.
func (p *Publisher) Unpublish(ctx context.Context, recs []attach.Record) error {
	if err := p.Await(ctx, p.Withdraw(recs...)); err != nil || p.opts.Tracked == nil {
		return err
	}
	var pods []netip.Addr
	for i := range recs {
		if len(recs[i].HostPorts) == 0 || recs[i].BootID != p.opts.BootID {
			continue
		}
		for _, address := range recs[i].Addresses {
			pods = append(pods, address.Addr())
		}
	}
	if len(pods) == 0 {
		return nil
	}
	if err := p.opts.Tracked.FlushTranslatedTo(pods...); err != nil {
		p.opts.Log.Warn("conntrack flush of host ports failed; the entries stay until they expire", "error", err)
	}
	return nil
}

// Check compares the node's rules with an attachment's host ports. What another program has changed is put back.
func (p *Publisher) Check(ctx context.Context, rec *attach.Record) error {
	if len(rec.HostPorts) == 0 {
		return nil
	}
	if err := p.opts.Rules.Failure(ownerOf(rec)); err != nil {
		return fmt.Errorf("host ports: %w", err)
	}
	have, err := p.opts.Rules.Read(ctx)
	if err != nil {
		return fmt.Errorf("host ports: %w", err)
	}
	for key, want := range p.Fragment(rec) {
		if item := have[key]; item == nil || !item.Equal(want) {
			p.opts.Rules.Resync() // Read has consumed the event of the change
			return fmt.Errorf("host ports of pod %s: the node's rules lack %s: another program, or another pod's host port, has removed or replaced it", podOf(rec), want)
		}
	}
	return nil
}
