// Package published makes host ports of pods on the flannel network reach them: it compiles them to the table inet weft-flannel, and maintains
// those of attachments in the node's rules.
package published

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/hostport"
	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/nft"
	"weft.dev/weft/internal/reconcile"
)

// Table is the name of the table, of family inet.
const Table = "weft-flannel"

// comment is the comment of all rules.
const comment = "flannel"

const (
	// setSelf4 and setSelf6 have each pod with host ports, as source and as destination: its own connections to them.
	setSelf4 = "self4"
	setSelf6 = "self6"
	// priorityFirst is before the masquerading of the lease's tables and of kube-proxy.
	priorityFirst = 99
)

// Items are rules of the node.
type Items = map[nft.Key]nft.Item

// Publisher maintains the host ports of attachments.
type Publisher struct {
	rules    *reconcile.Loop[nft.Key, nft.Item]
	reserved func(cni.HostPort) string
	tracked  *link.Conntrack
	log      *slog.Logger
}

// New returns a Publisher for the caller's network namespace. reserved says what a port of the node is reserved for; "" or nil: it is not.
// log gets failures that delay nothing.
func New(rules *reconcile.Loop[nft.Key, nft.Item], reserved func(cni.HostPort) string, log *slog.Logger) (*Publisher, error) {
	tracked, err := link.NewConntrack("")
	if err != nil {
		return nil, err //nolint:wrapcheck // it says what failed
	}
	return &Publisher{rules, reserved, tracked, log}, nil
}

// Close closes its sockets.
func (p *Publisher) Close() { p.tracked.Close() }

func families() []hostport.Family { return []hostport.Family{hostport.IPv4(), hostport.IPv6()} }

// Static returns the table without pods. Clients keep their source address, with two exceptions, which become the bridge's: 127.0.0.1,
// which is valid on the node only, and the pod itself, which would take an answer to its own address for a stranger's.
func Static(bridge string, tunnels []uint16) Items {
	out := Items{}
	add := func(items ...nft.Item) {
		for _, item := range items {
			out[item.Key()] = item
		}
	}
	add(&nft.Table{Family: nft.FamilyInet, Name: Table})
	add(hostport.Maps(Table, families()...)...)
	add(&nft.Set{Family: nft.FamilyInet, Table: Table, Name: setSelf4, Type: "ipv4_addr . ipv4_addr"},
		&nft.Set{Family: nft.FamilyInet, Table: Table, Name: setSelf6, Type: "ipv6_addr . ipv6_addr"})
	received, own := hostport.Chains(families(), tunnels)
	sources := nft.Chain{Family: nft.FamilyInet, Name: "hostports-from", Type: nft.TypeNAT, Hook: nft.HookPostrouting, Priority: priorityFirst}
	for _, c := range []hostport.Chain{received, own, {Chain: sources, Rules: []string{
		fmt.Sprintf("oifname %q ip saddr 127.0.0.0/8 ct status dnat masquerade", bridge),
		"ct status dnat ip saddr . ip daddr @" + setSelf4 + " masquerade",
		"ct status dnat ip6 saddr . ip6 daddr @" + setSelf6 + " masquerade",
	}}} {
		c.Table = Table
		rules := &nft.ChainRules{Family: nft.FamilyInet, Table: Table, Chain: c.Name}
		for _, text := range c.Rules {
			rules.Rules = append(rules.Rules, nft.Rule{Text: text, Owner: comment})
		}
		add(&c.Chain, rules)
	}
	return out
}

// Elements returns the elements of an attachment's host ports; nil if there are none.
func Elements(rec *attach.Record) Items {
	if len(rec.HostPorts) == 0 {
		return nil
	}
	of := hostport.Published{Pod: rec.PodNamespace + "/" + rec.PodName, Ports: rec.HostPorts}
	out := Items{}
	for _, prefix := range rec.Addresses {
		address := prefix.Addr()
		of.Addresses = append(of.Addresses, address)
		self := &nft.Element{
			Family: nft.FamilyInet, Table: Table, Set: setSelf4, Match: []string{address.String(), address.String()}, Owner: of.Note(),
		}
		if !address.Is4() {
			self.Set = setSelf6
		}
		out[self.Key()] = self
	}
	for _, element := range of.Elements(Table) {
		out[element.Key()] = element
	}
	return out
}

func ownerOf(rec *attach.Record) reconcile.Owner { return reconcile.Owner(rec.Key().Owner()) }

// Requested returns the host ports that a pod with these addresses requests.
func (p *Publisher) Requested(req *cni.Request, addresses []netip.Prefix) ([]cni.HostPort, error) {
	ports, err := hostport.Requested(req, p.reserved, true)
	if err != nil {
		return nil, err //nolint:wrapcheck // it names the pod
	}
	var has [2]bool
	for _, prefix := range addresses {
		has[familyIndex(prefix.Addr())] = true
	}
	for _, port := range ports {
		if port.Address.IsValid() && !has[familyIndex(port.Address)] {
			return nil, cni.Errorf(cni.CodeUnsupportedField, "pod %s/%s cannot have host port %s: it has no address of that family; "+
				"leave hostIP out, or name an address of the node of the pod's family", req.Args.PodNamespace, req.Args.PodName, port)
		}
	}
	return ports, nil
}

func familyIndex(address netip.Addr) int {
	if address.Is4() {
		return 0
	}
	return 1
}

// Publish makes an attachment's host ports reach it, and returns once they do.
func (p *Publisher) Publish(ctx context.Context, rec *attach.Record) error {
	if len(rec.HostPorts) == 0 {
		return nil
	}
	if err := p.rules.Apply(ctx, map[reconcile.Owner]Items{ownerOf(rec): Elements(rec)}); err != nil {
		return fmt.Errorf("host ports: %w", err)
	}
	return p.forget(rec.HostPorts)
}

// forget flushes the connections to ports of the node: a TCP client opens a new connection; with the other protocols, packets of the same
// client would follow the rules at its first packet, to the node itself or to the pod that had the port before.
func (p *Publisher) forget(ports []cni.HostPort) error {
	protocols := map[string]uint8{"udp": unix.IPPROTO_UDP, "sctp": unix.IPPROTO_SCTP}
	untracked := true
	for _, port := range ports {
		untracked = untracked && protocols[port.Protocol] == 0
	}
	if untracked {
		return nil
	}
	own, err := p.tracked.Own()
	if err != nil {
		return fmt.Errorf("host ports: %w", err)
	}
	if _, err = p.tracked.Flush(func(t link.Tracked) bool {
		to := t.Original
		return own[to.Addr()] && slices.ContainsFunc(ports, func(port cni.HostPort) bool {
			return t.Protocol == protocols[port.Protocol] && to.Port() == port.Port && port.At(to.Addr())
		})
	}); err != nil {
		return fmt.Errorf("host ports: %w", err)
	}
	return nil
}

// Withdrawn are host ports that were withdrawn and may still be in effect.
type Withdrawn map[reconcile.Owner]Items

// Withdraw removes attachments' host ports, without waiting: see Await.
func (p *Publisher) Withdraw(recs ...attach.Record) Withdrawn {
	gone := Withdrawn{}
	for i := range recs {
		if len(recs[i].HostPorts) > 0 {
			gone[ownerOf(&recs[i])] = nil
		}
	}
	if len(gone) > 0 {
		p.rules.Set(gone)
	}
	return gone
}

// Await returns once no rule leads to what was withdrawn.
func (p *Publisher) Await(ctx context.Context, gone Withdrawn) error {
	if len(gone) == 0 {
		return nil
	}
	if err := p.rules.Apply(ctx, gone); err != nil {
		return fmt.Errorf("host ports: %w", err)
	}
	return nil
}

// Unpublish removes attachments' host ports, returns once no rule leads to them, and then flushes the connections that are translated to
// the pods. The judge flushes them too, but may do so while rules still lead there: the node's own packets, which it does not judge, would
// open such connections again.
func (p *Publisher) Unpublish(ctx context.Context, recs []attach.Record) error {
	gone := p.Withdraw(recs...)
	if err := p.Await(ctx, gone); err != nil || len(gone) == 0 {
		return err
	}
	former := map[netip.Addr]bool{}
	for i := range recs {
		for _, prefix := range recs[i].Addresses {
			former[prefix.Addr()] = len(recs[i].HostPorts) > 0
		}
	}
	_, err := p.tracked.Flush(func(t link.Tracked) bool { return former[t.Destination] && t.Original.Addr() != t.Destination })
	if err != nil {
		p.log.Warn("conntrack flush of host ports; their connections last until they end", "error", err)
	}
	return nil
}
