package nftnl

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"sync"

	"weft.dev/weft/internal/reconcile"
)

// Fake is an engine that keeps its table in memory. It behaves like [Engine], which the same tests verify, and evaluates packets as the
// kernel does. The zero value is not usable; use [NewFake].
type Fake struct {
	mutex   sync.Mutex
	state   map[Key]Item
	commits int
}

var _ reconcile.Engine[Key, Item] = (*Fake)(nil)

// NewFake returns an empty table.
func NewFake() *Fake { return &Fake{state: map[Key]Item{}} }

// Commits returns the number of commits that have changed something.
func (f *Fake) Commits() int {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	return f.commits
}

// Forget removes an item as another program would, without the engine.
func (f *Fake) Forget(key Key) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	applyTo(f.state, Change{Delete: map[Key]Item{key: nil}})
}

// Read implements reconcile.Engine.
func (f *Fake) Read(ctx context.Context) (map[Key]Item, error) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	return maps.Clone(f.state), ctx.Err()
}

// Commit implements reconcile.Engine.
func (f *Fake) Commit(ctx context.Context, change Change) error {
	if err := ctx.Err(); err != nil || change.Empty() {
		return err
	}
	if err := validateChange(change); err != nil {
		return err
	}
	f.mutex.Lock()
	defer f.mutex.Unlock()
	next := maps.Clone(f.state)
	for key, item := range change.Set {
		if have, ok := f.state[key]; ok && key.Kind == KindSet && !item.Equal(have) {
			return invalid("%s exists with another type (%s): choose another name", item, have)
		}
	}
	applyTo(next, change)
	if err := consistent(next); err != nil {
		return err
	}
	f.state, f.commits = next, f.commits+1
	return nil
}

// consistent checks references as the kernel does.
func consistent(state map[Key]Item) error {
	exists := func(kind Kind, name string) error {
		if _, ok := state[Key{Kind: kind, Name: name}]; !ok {
			return fmt.Errorf("%w: %s %s does not exist", ErrRefused, kind, name)
		}
		return nil
	}
	target := func(v Verdict) error {
		if v.Chain == "" {
			return nil
		}
		return exists(KindChain, v.Chain)
	}
	for _, item := range state {
		var err error
		switch item := item.(type) {
		case *Element:
			if err = exists(KindSet, item.Set); err == nil {
				set, _ := state[Key{Kind: KindSet, Name: item.Set}].(*Set)
				if err = item.fits(set.kind()); err == nil {
					err = target(item.Verdict)
				}
			}
		case *Rules:
			err = item.refersTo(exists, target)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// refersTo calls exists and target for what the rules reference, until one fails.
func (r *Rules) refersTo(exists func(Kind, string) error, target func(Verdict) error) error {
	if err := exists(KindChain, r.Chain); err != nil {
		return err
	}
	for _, rule := range r.Rules {
		for _, match := range rule.Matches {
			if match.Set != "" {
				if err := exists(KindSet, match.Set); err != nil {
					return err
				}
			}
		}
		if rule.Map != "" {
			if err := exists(KindSet, rule.Map); err != nil {
				return err
			}
		}
		if err := target(rule.Verdict); err != nil {
			return err
		}
	}
	return nil
}

// Packet has the fields of a packet, each with a single value. Mark and ConntrackState are 0 if not given; a match on another field that is
// not given fails, inverted or not.
type Packet map[Field]Value

// Judge returns the verdict of a hook's base chains on a packet, and the packet with the resulting mark.
func (f *Fake) Judge(hook Hook, packet Packet) (Verdict, Packet) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	packet = maps.Clone(packet)
	for _, field := range []Field{Mark, ConntrackState} {
		if _, ok := packet[field]; !ok {
			packet[field] = Bits(0)
		}
	}
	var chains []*Chain
	for _, item := range f.state {
		if chain, ok := item.(*Chain); ok && chain.Hook == hook {
			chains = append(chains, chain)
		}
	}
	slices.SortFunc(chains, func(a, b *Chain) int { return cmp.Compare(a.Priority, b.Priority) })
	for _, chain := range chains {
		if f.walk(chain.Name, packet).Kind == VerdictDrop {
			return Drop(), packet
		}
	}
	return Accept(), packet
}

// walk returns accept or drop, or return if a chain ends without either.
func (f *Fake) walk(chain string, packet Packet) Verdict {
	rules, ok := f.state[Key{Kind: KindRules, Name: chain}].(*Rules)
	if !ok {
		return Return()
	}
	for i := range rules.Rules {
		verdict := f.apply(&rules.Rules[i], packet)
		switch verdict.Kind {
		case "":
			continue
		case VerdictGoto:
			return f.walk(verdict.Chain, packet)
		case VerdictJump:
			if verdict = f.walk(verdict.Chain, packet); verdict.Kind != VerdictReturn {
				return verdict
			}
		default:
			return verdict
		}
	}
	return Return()
}

// apply returns the verdict of a rule, the zero value if there is none.
func (f *Fake) apply(rule *Rule, packet Packet) Verdict {
	for _, match := range rule.Matches {
		if !f.holds(match, packet) {
			return Verdict{}
		}
	}
	if rule.MarkMask != 0 {
		packet[Mark] = Bits(packet.bits(Mark)&^rule.MarkMask | rule.Mark)
	}
	if rule.Map != "" {
		element := f.find(rule.Map, rule.MapFields, packet)
		if element == nil {
			return Verdict{} // a lookup without result ends the rule
		}
		return element.Verdict
	}
	return rule.Verdict
}

func (p Packet) bits(field Field) uint32 {
	if field == TCPFlags {
		return uint32(p[field].From[0])
	}
	return binary.NativeEndian.Uint32([]byte(p[field].From))
}

func (f *Fake) holds(match Match, packet Packet) bool {
	for _, field := range match.Fields {
		if _, ok := packet[field]; !ok {
			return false
		}
	}
	var result bool
	switch {
	case match.Set != "":
		result = f.find(match.Set, match.Fields, packet) != nil
	case match.Mask != 0:
		result = packet.bits(match.Fields[0])&match.Mask != 0
	default:
		result = match.Value.contains(packet[match.Fields[0]].From)
	}
	return result != match.Inverted
}

// find returns the element that has the packet's fields, nil if there is none.
func (f *Fake) find(set string, fields []Field, packet Packet) *Element {
	for _, item := range f.state {
		element, ok := item.(*Element)
		if !ok || element.Set != set || len(element.Match) != len(fields) {
			continue
		}
		inside := true
		for i, field := range fields {
			value, given := packet[field]
			inside = inside && given && element.Match[i].contains(value.From)
		}
		if inside {
			return element
		}
	}
	return nil
}
