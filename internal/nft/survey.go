package nft

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
)

// Traffic is a kind of packets at a hook that other programs' chains have to let pass: packets from a device, to a device, from a range of
// addresses, to a range, or UDP to a port. Exactly one of the five is set.
type Traffic struct {
	// Family is FamilyIPv4 or FamilyIPv6.
	Family Family
	Hook   Hook
	// InDevice is also the device of an ingress hook.
	InDevice, OutDevice string
	// Source and Destination are of the same family.
	Source, Destination netip.Prefix
	UDPPort             uint16
}

// String implements fmt.Stringer.
func (p Traffic) String() string {
	switch {
	case p.InDevice != "":
		return "from " + p.InDevice
	case p.OutDevice != "":
		return "to " + p.OutDevice
	case p.Source.IsValid():
		return "from " + p.Source.String()
	case p.Destination.IsValid():
		return "to " + p.Destination.String()
	default:
		return "to UDP port " + strconv.Itoa(int(p.UDPPort))
	}
}

// ForeignDrop is a place in another table that drops, or may drop, the packets of a kind of traffic.
type ForeignDrop struct {
	Family   Family
	Table    string
	Chain    string
	Hook     Hook
	Priority int
	// Traffic is the kind of packets that it drops.
	Traffic Traffic
	// Rule is the dropping rule, in the words of nft's listing, or "policy drop".
	Rule string
	// Handle of the rule; 0 for a policy.
	Handle int
	// In is the chain that contains the rule, if Chain reaches it by a jump; else it is Chain.
	In string
	// Conditional reports that the rule, or the jump to it, has further conditions, so that it drops only some of the packets.
	Conditional bool
	// Named reports that the rule, or the jump to it, names its device or port: it is intended.
	Named bool
	// Openable reports that a ForeignJump can be added to Chain.
	Openable bool
}

// String names the chain and the rule, for messages.
func (d *ForeignDrop) String() string {
	text := fmt.Sprintf("chain %s of table %s %s (hook %s) drops packets %s: %s", d.Chain, d.Family, d.Table, d.Hook, d.Traffic, d.Rule)
	if d.In != d.Chain {
		text += " (in chain " + d.In + ")"
	}
	return text
}

// Jump returns the item that, committed, lets the kind of traffic through the chain. Commit it under a separate owner: the chain belongs to another
// program and may be removed at any time; then nft rejects the transaction and names the chain.
func (d *ForeignDrop) Jump(owner string) *ForeignJump {
	return &ForeignJump{
		Family: d.Family, Table: d.Table, Chain: d.Chain, Owner: owner,
		InDevice: d.Traffic.InDevice, OutDevice: d.Traffic.OutDevice, UDPPort: d.Traffic.UDPPort,
		Source: d.Traffic.Source, Destination: d.Traffic.Destination,
	}
}

// Survey is the effect of other programs' chains on some kinds of traffic.
type Survey struct {
	// Drops are in the order of the chains. Rules with Mark are ignored: what they let pass is in Drops as long as it would be dropped without
	// them.
	Drops []ForeignDrop
	// Watched are the chains that were examined.
	Watched map[Key]bool
	// Counts are the numbers of rules of the chains in tables that were listed completely.
	Counts map[Key]int
}

// Rules returns how many rules a chain of another program has. Tables with very many chains, tables without a base chain, and tables of the
// families arp and bridge are not examined: their chains count as empty.
func (s *Survey) Rules(chain Key) int { return s.Counts[chain] }

// Concerns reports whether a drift may change the result of a Survey of the same kinds of traffic.
func (s *Survey) Concerns(drift *Drift) bool {
	if drift.All || drift.Hooks && !drift.InCare {
		return true
	}
	return slices.ContainsFunc(drift.Chains, func(chain string) bool {
		return s.Watched[Key{drift.Family, drift.Table, KindChain, chain}]
	})
}

// Openable reports whether a ForeignJump can be added to the base chains of a family at a hook: at the hooks that decide what a host
// receives, forwards and sends, for addresses and ports.
func Openable(family Family, hook Hook) bool {
	switch family {
	case FamilyIPv4, FamilyIPv6, FamilyInet:
		return hook == HookForward || hook == HookInput || hook == HookOutput
	default:
		return false
	}
}
