package nft

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// StateSet is the name of the set in each of Weft's tables that holds the engine's records. No rule references it.
const StateSet = "weft_state"

// Mark starts the comment of every rule that Weft adds to a foreign chain.
const Mark = "weft.dev"

// Family is an nftables address family.
type Family string

// The families.
const (
	FamilyIPv4   Family = "ip"
	FamilyIPv6   Family = "ip6"
	FamilyInet   Family = "inet"
	FamilyARP    Family = "arp"
	FamilyBridge Family = "bridge"
	FamilyNetdev Family = "netdev"
)

// Kind is the kind of an item.
type Kind string

// The kinds of items.
const (
	KindTable       Kind = "table"
	KindChain       Kind = "chain"
	KindRules       Kind = "rules"
	KindSet         Kind = "set"
	KindMap         Kind = "map"
	KindElement     Kind = "element"
	KindForeignJump Kind = "foreign-jump"
)

// Key names an item within everything the engine holds.
type Key struct {
	Family Family
	Table  string
	Kind   Kind
	// Name is the object's name: empty for a table, the chain's for rules, the set's or map's name and the element's key for an element, the
	// chain's and what it lets pass for a foreign jump.
	Name string
}

// String returns the key as errors show it.
func (k Key) String() string {
	words := []string{string(k.Kind), string(k.Family), k.Table}
	if k.Name != "" {
		words = append(words, k.Name)
	}
	return strings.Join(words, " ")
}

// Sibling returns the key of another object in the table of k.
func (k Key) Sibling(kind Kind, name string) Key { return Key{k.Family, k.Table, kind, name} }

// sameTable reports whether two objects are in one table.
func (k Key) sameTable(other Key) bool { return k.Family == other.Family && k.Table == other.Table }

// Item is one of *Table, *Chain, *ChainRules, *Set, *Map, *Element, *ForeignJump. Items must not be changed once they are handed over.
type Item interface {
	// Key identifies the item.
	Key() Key
	// Equal reports whether programming other in place of this item would change nothing.
	Equal(other Item) bool
	// String returns the item in the words of nft(8), for differences and logs.
	String() string
}

// Table is a table of Weft. The engine manages everything in it. Deleting it deletes its content.
type Table struct {
	Family Family
	Name   string

	// Dormant reports that no packet traverses the table, if it was read: another program has set nft's flag dormant. It is false in desired
	// items.
	Dormant bool
}

// Key implements Item.
func (t *Table) Key() Key { return Key{t.Family, t.Name, KindTable, ""} }

// Equal implements Item.
func (t *Table) Equal(other Item) bool {
	o, ok := other.(*Table)
	return ok && *o == *t
}

// String implements Item.
func (t *Table) String() string {
	if t.Dormant {
		return t.Key().String() + " (dormant)"
	}
	return t.Key().String()
}

// Hook is where a base chain is attached.
type Hook string

// The hooks.
const (
	HookPrerouting  Hook = "prerouting"
	HookInput       Hook = "input"
	HookForward     Hook = "forward"
	HookOutput      Hook = "output"
	HookPostrouting Hook = "postrouting"
	HookIngress     Hook = "ingress"
	HookEgress      Hook = "egress"
)

// ChainType is a base chain's type.
type ChainType string

// The types of base chains.
const (
	TypeFilter ChainType = "filter"
	TypeNAT    ChainType = "nat"
	TypeRoute  ChainType = "route"
)

// Policy is the verdict of a base chain at its end.
type Policy string

// The policies. The zero value of a base chain's Policy is accept.
const (
	PolicyAccept Policy = "accept"
	PolicyDrop   Policy = "drop"
)

// Chain is a chain without its rules: a base chain if Hook is set, else a regular one.
type Chain struct {
	Family Family
	Table  string
	Name   string
	Type   ChainType
	Hook   Hook
	// Priority is the number (filter is 0, srcnat 100, dstnat -100, raw -300).
	Priority int
	// Policy of a base chain; "" is accept.
	Policy Policy
	// Device is the interface of an ingress or egress chain.
	Device string
}

// Key implements Item.
func (c *Chain) Key() Key { return Key{c.Family, c.Table, KindChain, c.Name} }

// Normalised returns the chain as nft lists it: with a base chain's default policy, and without what only base chains have.
func (c *Chain) Normalised() Chain {
	n := *c
	if n.Hook == "" {
		n.Type, n.Priority, n.Policy, n.Device = "", 0, "", ""
		return n
	}
	if n.Policy == "" {
		n.Policy = PolicyAccept
	}
	return n
}

// Equal implements Item.
func (c *Chain) Equal(other Item) bool {
	o, ok := other.(*Chain)
	return ok && c.Normalised() == o.Normalised()
}

// String implements Item.
func (c *Chain) String() string {
	n := c.Normalised()
	if n.Hook == "" {
		return n.Key().String()
	}
	words := []string{n.Key().String(), "{ type", string(n.Type), "hook", string(n.Hook)}
	if n.Device != "" {
		words = append(words, "device", strconv.Quote(n.Device))
	}
	return strings.Join(append(words, "priority", strconv.Itoa(n.Priority)+"; policy", string(n.Policy)+"; }"), " ")
}

// Rule is one rule of a chain.
type Rule struct {
	// Text is the rule in nft's syntax, without comment, on one line.
	Text string
	// Owner is the object that the rule comes from; it becomes the rule's comment. At most 120 bytes.
	Owner string
}

// ChainRules is all rules of a chain, in order. A chain without a ChainRules item has none.
type ChainRules struct {
	Family Family
	Table  string
	Chain  string
	Rules  []Rule

	// recorded is the digest of the desired rules, if the item was read; altered is the listing, if it differs.
	recorded string
	altered  string
}

// ListedRules returns a chain's rules as an engine lists them: the digest of those that it committed, "" for none, and the chain's present
// rules if they are others, else "".
func ListedRules(key Key, recorded, altered string) *ChainRules {
	return &ChainRules{Family: key.Family, Table: key.Table, Chain: key.Name, recorded: recorded, altered: altered}
}

// Key implements Item.
func (r *ChainRules) Key() Key { return Key{r.Family, r.Table, KindRules, r.Chain} }

// Digest is a digest of the rules, as 32 hexadecimal digits.
func (r *ChainRules) Digest() string {
	if r.recorded != "" {
		return r.recorded
	}
	hash := sha256.New()
	for _, rule := range r.Rules {
		hash.Write([]byte(strconv.Itoa(len(rule.Text)) + ":" + rule.Text + strconv.Itoa(len(rule.Owner)) + ":" + rule.Owner))
	}
	return hex.EncodeToString(hash.Sum(nil)[:16])
}

// Altered reports whether the item was read from a chain that another program has changed.
func (r *ChainRules) Altered() bool { return r.altered != "" }

// Equal implements Item. Altered rules equal nothing.
func (r *ChainRules) Equal(other Item) bool {
	o, ok := other.(*ChainRules)
	return ok && r.altered == "" && o.altered == "" && r.Key() == o.Key() && r.Digest() == o.Digest()
}

// String implements Item.
func (r *ChainRules) String() string {
	if r.altered != "" {
		return r.Key().String() + " altered: " + r.altered
	}
	if r.recorded != "" {
		return r.Key().String() + " digest " + r.recorded
	}
	lines := []string{r.Key().String() + " {"}
	for _, rule := range r.Rules {
		lines = append(lines, "  "+rule.Text+" comment "+strconv.Quote(rule.Owner))
	}
	return strings.Join(append(lines, "}"), "\n")
}

// SetFlag is a flag of a set or map.
type SetFlag string

// The flags.
const (
	FlagConstant SetFlag = "constant"
	FlagDynamic  SetFlag = "dynamic"
	FlagInterval SetFlag = "interval"
	FlagTimeout  SetFlag = "timeout"
)

// Set is a named set without its elements. Elements of a set with FlagDynamic or FlagTimeout are written by packets: the engine neither
// reads nor compares them. A set's type cannot be changed while rules use it: use another name.
type Set struct {
	Family Family
	Table  string
	Name   string
	// Type is the key's type, concatenations joined by " . ": "ipv4_addr", "ipv4_addr . inet_service".
	Type  string
	Flags []SetFlag
	// Size is the maximum number of elements; 0 is no limit.
	Size uint64
}

// Key implements Item.
func (s *Set) Key() Key { return Key{s.Family, s.Table, KindSet, s.Name} }

// Equal implements Item.
func (s *Set) Equal(other Item) bool {
	o, ok := other.(*Set)
	return ok && s.Key() == o.Key() && s.Type == o.Type && s.Size == o.Size && sameFlags(s.Flags, o.Flags)
}

// String implements Item.
func (s *Set) String() string { return describeSet(s.Key(), s.Type, s.Flags, s.Size) }

// Map is a named map or verdict map without its elements.
type Map struct {
	Family Family
	Table  string
	Name   string
	// Type is the key's type, as of a Set; Value is the value's: "ipv4_addr", "mark", "verdict".
	Type, Value string
	Flags       []SetFlag
	// Size is the maximum number of elements; 0 is no limit.
	Size uint64
}

// Key implements Item.
func (m *Map) Key() Key { return Key{m.Family, m.Table, KindMap, m.Name} }

// Equal implements Item.
func (m *Map) Equal(other Item) bool {
	o, ok := other.(*Map)
	return ok && m.Key() == o.Key() && m.Type == o.Type && m.Value == o.Value && m.Size == o.Size && sameFlags(m.Flags, o.Flags)
}

// String implements Item.
func (m *Map) String() string { return describeSet(m.Key(), m.Type+" : "+m.Value, m.Flags, m.Size) }

// Element is one element of a set or a map. Its texts must be as nft prints them: addresses in their shortest form, prefixes masked, a host
// as an address without /32, a range as "a-b" unless it is a prefix, numbers, marks and services in decimal, protocols by name, interface
// names unquoted.
type Element struct {
	Family Family
	Table  string
	// Set is the name of the set or map.
	Set string
	// Match is the element itself: one text per part of a concatenation.
	Match []string
	// Value has one text per part of a map's value, a verdict in nft's syntax ("jump chain", "drop"); empty in a set.
	Value []string
	// Owner becomes the element's comment. At most 120 bytes.
	Owner string
}

// Key implements Item.
func (e *Element) Key() Key {
	return Key{e.Family, e.Table, KindElement, e.Set + " " + strings.Join(e.Match, " . ")}
}

// Equal implements Item.
func (e *Element) Equal(other Item) bool {
	o, ok := other.(*Element)
	return ok && e.Key() == o.Key() && slices.Equal(e.Value, o.Value) && e.Owner == o.Owner
}

// String implements Item.
func (e *Element) String() string {
	text := e.Key().String()
	if len(e.Value) > 0 {
		text += " : " + strings.Join(e.Value, " . ")
	}
	return text + " comment " + strconv.Quote(e.Owner)
}

// ForeignJump is one rule at the top of another program's base chain. It accepts traffic by one interface, range or port, so that the
// chain's later rules cannot drop it. Its form is one that iptables-nft can read. Its comment starts with Mark.
type ForeignJump struct {
	Family Family
	Table  string
	Chain  string
	// InDevice, OutDevice, or both, are the packet's incoming and outgoing devices.
	InDevice, OutDevice string
	// Source, Destination, or both, are ranges that contain the packet's addresses; of the chain's family, or of either family in a chain of
	// family inet.
	Source, Destination netip.Prefix
	// UDPPort, if not 0, restricts the rule to UDP packets to that port. At least one of InDevice, OutDevice, Source, Destination and UDPPort
	// is needed.
	UDPPort uint16
	// Owner follows Mark in the comment. At most 100 bytes.
	Owner string

	// Misplaced reports that the rule was not read from the top of the chain, or exists more than once, or is another rule than its comment
	// says. It is false in desired items.
	Misplaced bool
	// Handles are those of the rule and its duplicates, if it was read. Desired items have none.
	Handles []int
}

// Key implements Item.
func (j *ForeignJump) Key() Key {
	name := j.Chain + " " + j.InDevice + ">" + j.OutDevice
	if j.Source.IsValid() || j.Destination.IsValid() {
		name += " " + rangeText(j.Source) + ">" + rangeText(j.Destination)
	}
	if j.UDPPort != 0 {
		name += " udp " + strconv.Itoa(int(j.UDPPort))
	}
	return Key{j.Family, j.Table, KindForeignJump, name}
}

// Equal implements Item. A rule that is not at the top equals nothing.
func (j *ForeignJump) Equal(other Item) bool {
	o, ok := other.(*ForeignJump)
	return ok && !j.Misplaced && !o.Misplaced && j.Key() == o.Key() && j.Owner == o.Owner
}

// String implements Item.
func (j *ForeignJump) String() string {
	text := j.Key().String() + " " + strconv.Quote(j.Owner)
	if j.Misplaced {
		text += " (not at the top)"
	}
	return text
}

// Empty reports whether the rule would let everything pass.
func (j *ForeignJump) Empty() bool {
	return j.InDevice == "" && j.OutDevice == "" && j.UDPPort == 0 && !j.Source.IsValid() && !j.Destination.IsValid()
}

// rangeText returns a range as text, "" for an invalid one.
func rangeText(r netip.Prefix) string {
	if !r.IsValid() {
		return ""
	}
	return r.String()
}

// ErrMissing reports that what nft was asked for, or a reference of it, does not exist in the kernel: a set, or a chain to jump to.
var ErrMissing = errors.New("does not exist")

// ErrRefused reports that nft rejected a transaction; the error that wraps it names the object and has nft's message.
var ErrRefused = errors.New("nft refused the transaction")

func sameFlags(a, b []SetFlag) bool {
	a, b = slices.Clone(a), slices.Clone(b)
	slices.Sort(a)
	slices.Sort(b)
	return slices.Equal(slices.Compact(a), slices.Compact(b))
}

func describeSet(key Key, typ string, flags []SetFlag, size uint64) string {
	words := []string{key.String(), "{ type", typ + ";"}
	for _, flag := range flags {
		words = append(words, string(flag))
	}
	if size != 0 {
		words = append(words, "size", strconv.FormatUint(size, 10))
	}
	return strings.Join(append(words, "}"), " ")
}
