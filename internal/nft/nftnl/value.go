package nftnl

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Family is an nftables address family.
type Family string

// The families that the engine supports.
const (
	FamilyInet   Family = "inet"
	FamilyBridge Family = "bridge"
)

// Kind is the kind of an item.
type Kind string

// The kinds of items.
const (
	KindChain   Kind = "chain"
	KindRules   Kind = "rules"
	KindSet     Kind = "set"
	KindElement Kind = "element"
)

// Key names an item within the table.
type Key struct {
	Kind Kind
	// Name is the name of the chain or set.
	Name string
	// Match identifies an element in its set; it is empty for other kinds.
	Match string
}

// String returns the key as errors show it. [Element.String] is readable for an element.
func (k Key) String() string {
	if k.Match == "" {
		return string(k.Kind) + " " + k.Name
	}
	return fmt.Sprintf("%s %s %x", k.Kind, k.Name, k.Match)
}

// Item is one of *Chain, *Rules, *Set, *Element. Items must not be changed once they are handed over.
type Item interface {
	// Key identifies the item.
	Key() Key
	// Equal reports whether programming other in place of this item would change nothing.
	Equal(other Item) bool
	// String returns the item in the words of nft(8), for differences and logs.
	String() string
}

// Items keys items.
func Items(items ...Item) map[Key]Item {
	state := make(map[Key]Item, len(items))
	for _, item := range items {
		state[item.Key()] = item
	}
	return state
}

// ErrInvalid reports an item that was rejected before anything was sent.
var ErrInvalid = errors.New("invalid nftables item")

// Hook is where a base chain is attached.
type Hook string

// The hooks.
const (
	HookPrerouting  Hook = "prerouting"
	HookInput       Hook = "input"
	HookForward     Hook = "forward"
	HookOutput      Hook = "output"
	HookPostrouting Hook = "postrouting"
)

// Chain is a chain of type filter without its rules: a base chain with the policy accept if Hook is set, else a regular one. A base chain
// that changes its hook or priority is created again in the same transaction.
type Chain struct {
	Name string
	Hook Hook
	// Priority orders the base chains of a hook, lower first.
	Priority int

	// dormant reports that no packet traverses the base chain, if it was read: another program has set the table's flag dormant.
	dormant bool
}

// Key implements Item.
func (c *Chain) Key() Key { return Key{Kind: KindChain, Name: c.Name} }

// Equal implements Item.
func (c *Chain) Equal(other Item) bool {
	o, ok := other.(*Chain)
	return ok && c.Name == o.Name && c.dormant == o.dormant && c.sameHook(o)
}

// sameHook reports whether the chains have the same hook and priority, or none.
func (c *Chain) sameHook(o *Chain) bool {
	return c.Hook == o.Hook && (c.Hook == "" || c.Priority == o.Priority)
}

// String implements Item.
func (c *Chain) String() string {
	if c.Hook == "" {
		return "chain " + c.Name
	}
	text := fmt.Sprintf("chain %s { type filter hook %s priority %d; policy accept; }", c.Name, c.Hook, c.Priority)
	if c.dormant {
		text += " (dormant)"
	}
	return text
}

// Set is a named set, or a verdict map, without its elements. The kind of a set cannot be changed: a set with other fields or flags needs
// another name.
type Set struct {
	Name string
	// Fields are the parts of the key.
	Fields []Field
	// Interval lets an element be an interval in each part. Intervals of a set must not overlap. Not for devices, marks and conntrack states.
	Interval bool
	// Verdicts makes the set a map from keys to verdicts.
	Verdicts bool
	// Most is the maximum number of elements; 0: not bounded. Lookups in a bounded set cost less: the kernel gives it a hash table that does
	// not grow. Only for sets without intervals. It is not compared: a set that exists keeps its own.
	Most uint32

	// read is the kernel's kind, if the item was read.
	read *setKind
}

// setKind has the properties that distinguish sets in the kernel.
type setKind struct {
	magic, size        uint32
	interval, verdicts bool
}

func (s *Set) kind() setKind {
	if s.read != nil {
		return *s.read
	}
	k := setKind{interval: s.Interval, verdicts: s.Verdicts}
	for _, field := range s.Fields {
		info := field.info()
		k.magic = k.magic<<typeBits | info.datatype.GetNFTMagic()
		k.size += uint32(padded(info.size))
	}
	if len(s.Fields) == 1 {
		k.size = uint32(s.Fields[0].info().size)
	}
	return k
}

// typeBits is how far the types of a concatenation are shifted (TYPE_BITS of nft's datatype.h).
const typeBits = 6

// padded is the size of a part of a concatenation: registers have 4 bytes.
func padded(size int) int { return (size + 3) / 4 * 4 }

// Key implements Item.
func (s *Set) Key() Key { return Key{Kind: KindSet, Name: s.Name} }

// Equal implements Item.
func (s *Set) Equal(other Item) bool {
	o, ok := other.(*Set)
	return ok && s.Name == o.Name && s.kind() == o.kind()
}

// String implements Item.
func (s *Set) String() string {
	if s.read != nil {
		return fmt.Sprintf("set %s { type %#x, %d bytes; interval %t, verdicts %t }", s.Name, s.read.magic, s.read.size,
			s.read.interval, s.read.verdicts)
	}
	names := make([]string, len(s.Fields))
	for i, field := range s.Fields {
		names[i] = field.String()
	}
	text := "set " + s.Name + " { typeof " + strings.Join(names, " . ")
	if s.Verdicts {
		text = "map " + s.Name + " { typeof " + strings.Join(names, " . ") + " : verdict"
	}
	if s.Interval {
		text += "; flags interval"
	}
	return text + "; }"
}

// Element is one element of a set or a verdict map.
type Element struct {
	// Set is the name of the set or map.
	Set string
	// Match has one value for each field of the set.
	Match []Value
	// Verdict is the value in a verdict map, the zero value in a set.
	Verdict Verdict
}

// Key implements Item. All parts have the same size in the elements of a set, so the key is unique.
func (e *Element) Key() Key {
	var from, to strings.Builder
	for _, value := range e.Match {
		from.WriteString(value.From)
		to.WriteString(value.To)
	}
	return Key{Kind: KindElement, Name: e.Set, Match: from.String() + to.String()}
}

// Equal implements Item.
func (e *Element) Equal(other Item) bool {
	o, ok := other.(*Element)
	return ok && e.Key() == o.Key() && e.Verdict == o.Verdict
}

// String implements Item.
func (e *Element) String() string { return e.text(nil) }

// text returns the element with the fields of its set, if they are known.
func (e *Element) text(fields []Field) string {
	words := make([]string, len(e.Match))
	for i, value := range e.Match {
		field := Field(0)
		if i < len(fields) {
			field = fields[i]
		}
		words[i] = field.text(value)
	}
	text := "element " + e.Set + " { " + strings.Join(words, " . ")
	if e.Verdict != (Verdict{}) {
		text += " : " + e.Verdict.String()
	}
	return text + " }"
}

// VerdictKind is what a verdict does.
type VerdictKind string

// The kinds of verdicts.
const (
	VerdictAccept VerdictKind = "accept"
	VerdictDrop   VerdictKind = "drop"
	VerdictReturn VerdictKind = "return"
	VerdictJump   VerdictKind = "jump"
	VerdictGoto   VerdictKind = "goto"
)

// Verdict is a verdict; the zero value is none.
type Verdict struct {
	Kind VerdictKind
	// Chain is the target of a jump or goto.
	Chain string
}

// Accept ends the hook for the packet.
func Accept() Verdict { return Verdict{Kind: VerdictAccept} }

// Drop drops the packet.
func Drop() Verdict { return Verdict{Kind: VerdictDrop} }

// Return returns to the calling chain.
func Return() Verdict { return Verdict{Kind: VerdictReturn} }

// Jump continues in a chain, and returns at its end.
func Jump(chain string) Verdict { return Verdict{VerdictJump, chain} }

// Goto continues in a chain; its end returns to the caller of the current chain.
func Goto(chain string) Verdict { return Verdict{VerdictGoto, chain} }

// String returns the verdict in the words of nft(8).
func (v Verdict) String() string { return strings.TrimSpace(string(v.Kind) + " " + v.Chain) }

// Match is a condition on a packet. [Is], [In] and [AnyBit] create one, [Not] inverts it.
type Match struct {
	// Fields are compared; exactly one, unless Set is given.
	Fields []Field
	// Value is the required value of the field, unless Set or Mask is given.
	Value Value
	// Mask is for [AnyBit].
	Mask uint32
	// Set is the name of the set that must contain the fields.
	Set string
	// Inverted inverts the condition. The protocols that the fields imply must still match.
	Inverted bool
}

// Is holds if the field has the value, or a value of the interval.
func Is(field Field, value Value) Match { return Match{Fields: []Field{field}, Value: value} }

// In holds if the set has an element with the fields.
func In(set string, fields ...Field) Match { return Match{Fields: fields, Set: set} }

// AnyBit holds if at least one bit of the mask is set in Mark, ConntrackState or TCPFlags.
func AnyBit(field Field, mask uint32) Match { return Match{Fields: []Field{field}, Mask: mask} }

// Not inverts a match.
func Not(m Match) Match {
	m.Inverted = !m.Inverted
	return m
}

func (m Match) text() string {
	names := make([]string, len(m.Fields))
	for i, field := range m.Fields {
		names[i] = field.String()
	}
	not := ""
	if m.Inverted {
		not = "!= "
	}
	text := strings.Join(names, " . ") + " "
	switch {
	case m.Set != "":
		return text + not + "@" + m.Set
	case m.Mask != 0:
		return text + "& " + fmt.Sprintf("%#x", m.Mask) + map[bool]string{false: " != 0", true: " == 0"}[m.Inverted]
	case len(m.Fields) == 1:
		return text + not + m.Fields[0].text(m.Value)
	default:
		return text
	}
}

// Rule is one rule of a chain. Its parts are in the order of the fields of the struct.
type Rule struct {
	Matches []Match
	// Counter counts packets and bytes.
	Counter bool
	// Mark, if MarkMask is not 0, is written to the masked bits of the packet's mark.
	Mark, MarkMask uint32
	// Map is the name of a verdict map that is looked up with MapFields. Without an element for the packet, the next rule follows.
	Map       string
	MapFields []Field
	// Verdict is the verdict if no map decided; with the zero value the next rule follows.
	Verdict Verdict
	// Owner is the object that the rule comes from; it becomes the rule's comment. At most 120 bytes of printable ASCII.
	Owner string
}

// String returns the rule in the words of nft(8).
func (r *Rule) String() string {
	var words []string
	for _, match := range r.Matches {
		words = append(words, match.text())
	}
	if r.Counter {
		words = append(words, "counter")
	}
	if r.MarkMask != 0 {
		words = append(words, fmt.Sprintf("meta mark set meta mark & %#x | %#x", ^r.MarkMask, r.Mark))
	}
	if r.Map != "" {
		words = append(words, strings.TrimSuffix(Match{Fields: r.MapFields}.text(), " ")+" vmap @"+r.Map)
	}
	if r.Verdict != (Verdict{}) {
		words = append(words, r.Verdict.String())
	}
	if r.Owner != "" {
		words = append(words, "comment", strconv.Quote(r.Owner))
	}
	return strings.Join(words, " ")
}

// Rules is all rules of a chain, in order. A chain without a Rules item has none.
type Rules struct {
	Chain string
	Rules []Rule

	// digests are those of the kernel's rules, if the item was read.
	digests []string
}

// Key implements Item.
func (r *Rules) Key() Key { return Key{Kind: KindRules, Name: r.Chain} }

// Equal implements Item. Rules that were read are compared by the digests of their expressions.
func (r *Rules) Equal(other Item) bool {
	o, ok := other.(*Rules)
	if !ok || r.Chain != o.Chain {
		return false
	}
	if r.digests == nil && o.digests == nil {
		return slices.EqualFunc(r.Rules, o.Rules, func(a, b Rule) bool { return a.String() == b.String() })
	}
	for _, family := range []Family{FamilyInet, FamilyBridge} {
		if slices.Equal(r.digestsFor(family), o.digestsFor(family)) {
			return true
		}
	}
	return false
}

func (r *Rules) digestsFor(family Family) []string {
	if r.digests != nil {
		return r.digests
	}
	digests := make([]string, len(r.Rules))
	for i := range r.Rules {
		digests[i] = digest(family, r.Rules[i].expressions(family), r.Rules[i].Owner)
	}
	return digests
}

// String implements Item.
func (r *Rules) String() string {
	if r.digests != nil {
		return fmt.Sprintf("chain %s with %d rules as read", r.Chain, len(r.digests))
	}
	lines := []string{"chain " + r.Chain + " {"}
	for i := range r.Rules {
		lines = append(lines, "  "+r.Rules[i].String())
	}
	return strings.Join(append(lines, "}"), "\n")
}

const (
	ownerMax = 120
	// keyMax is the maximum length of a set's key in bytes: 16 registers of 4 bytes.
	keyMax = 64
)

//nolint:gochecknoglobals // a constant pattern
var namePattern = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.-]*$`)

// nameMax limits an identifier. As a length in the pattern it would take half a millisecond to compile, at each start of each command.
const nameMax = 128

func validName(name string) bool { return len(name) <= nameMax && namePattern.MatchString(name) }

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrInvalid, fmt.Errorf(format, args...))
}

// validate rejects what the kernel would reject with a less clear message.
func validate(item Item) error {
	key := item.Key()
	if !validName(key.Name) {
		return invalid("name %.40q, want letters, digits and _.-, at most 128", key.Name)
	}
	switch item := item.(type) {
	case *Chain:
		switch item.Hook {
		case "", HookPrerouting, HookInput, HookForward, HookOutput, HookPostrouting:
		default:
			return invalid("hook %.40q of chain %s", item.Hook, item.Name)
		}
	case *Set:
		return item.validate()
	case *Element:
		if len(item.Match) == 0 {
			return invalid("element of set %s without a value", item.Set)
		}
		for _, value := range item.Match {
			if value.From > value.To || len(value.From) != len(value.To) {
				return invalid("element of set %s: interval from %x to %x", item.Set, value.From, value.To)
			}
		}
		return item.Verdict.validate()
	case *Rules:
		if len(item.Rules) == 0 {
			return invalid("chain %s without rules: leave the item out", item.Chain)
		}
		for i := range item.Rules {
			if err := item.Rules[i].validate(); err != nil {
				return fmt.Errorf("rule %d of chain %s: %w", i+1, item.Chain, err)
			}
		}
	}
	return nil
}

func (s *Set) validate() error {
	if err := validFields(s.Fields); err != nil {
		return fmt.Errorf("set %s: %w", s.Name, err)
	}
	for _, field := range s.Fields {
		if s.Interval && !field.ranges() {
			return invalid("set %s: no intervals of %s", s.Name, field)
		}
	}
	return nil
}

func validFields(fields []Field) error {
	size := 0
	for _, field := range fields {
		if field.info().size == 0 {
			return invalid("unknown %s", field)
		}
		size += padded(field.info().size)
	}
	if size == 0 || size > keyMax {
		return invalid("fields of %d bytes, want 1 to %d", size, keyMax)
	}
	return nil
}

func (v Verdict) validate() error {
	switch v.Kind {
	case "", VerdictAccept, VerdictDrop, VerdictReturn:
		if v.Chain != "" {
			return invalid("verdict %q with a chain", v)
		}
	case VerdictJump, VerdictGoto:
		if !validName(v.Chain) {
			return invalid("verdict %s without a valid chain", v.Kind)
		}
	default:
		return invalid("verdict %.40q", v.Kind)
	}
	return nil
}

func (r *Rule) validate() error {
	for _, match := range r.Matches {
		if err := match.validate(); err != nil {
			return err
		}
	}
	if r.Map != "" {
		if !validName(r.Map) {
			return invalid("map %.40q", r.Map)
		}
		if err := validFields(r.MapFields); err != nil {
			return fmt.Errorf("map %s: %w", r.Map, err)
		}
	}
	if r.Mark&^r.MarkMask != 0 {
		return invalid("mark %#x is outside of its mask %#x", r.Mark, r.MarkMask)
	}
	if len(r.Owner) > ownerMax || strings.ContainsFunc(r.Owner, func(c rune) bool { return c < ' ' || c > '~' }) {
		return invalid("owner %.40q, want at most %d bytes of printable ASCII", r.Owner, ownerMax)
	}
	return r.Verdict.validate()
}

func (m Match) validate() error {
	if err := validFields(m.Fields); err != nil {
		return err
	}
	switch {
	case m.Set != "":
		if !validName(m.Set) {
			return invalid("set %.40q", m.Set)
		}
	case len(m.Fields) != 1:
		return invalid("%d fields without a set", len(m.Fields))
	case m.Mask != 0:
		if field := m.Fields[0]; field != Mark && field != ConntrackState && field != TCPFlags {
			return invalid("bits of %s", field)
		}
	default:
		info := m.Fields[0].info()
		if len(m.Value.From) != info.size || len(m.Value.To) != info.size {
			return invalid("%s has %d bytes, the value %d", info.name, info.size, len(m.Value.From))
		}
		if m.Value.From > m.Value.To || m.Value.From != m.Value.To && !m.Fields[0].ranges() {
			return invalid("interval of %s", info.name)
		}
	}
	return nil
}
