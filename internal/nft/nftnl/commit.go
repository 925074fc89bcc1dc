package nftnl

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"weft.dev/weft/internal/reconcile"
)

// Change is a change of the table.
type Change = reconcile.Change[Key, Item]

// chunk limits the elements per message: the length of an attribute has 16 bits, and an element has at most 250 bytes.
const chunk = 200

func verdictKind(code int32) expr.VerdictKind { return expr.VerdictKind(code) }

// Commit implements reconcile.Engine: the change is made completely or, with an error, not at all.
func (e *Engine) Commit(ctx context.Context, change Change) error {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	if change.Empty() {
		return nil
	}
	if err := validateChange(change); err != nil {
		return err
	}
	if e.known == nil {
		if _, err := e.read(ctx); err != nil {
			return err
		}
	}
	err := e.commit(ctx, change)
	if err == nil || ctx.Err() != nil {
		return err
	}
	// Another program may have changed the table since it was read.
	if _, readErr := e.read(ctx); readErr != nil {
		return errors.Join(err, readErr)
	}
	if change = e.missing(change); change.Empty() {
		return nil
	}
	return e.commit(ctx, change)
}

func validateChange(change Change) error {
	for key, item := range change.Set {
		if err := validate(item); err != nil {
			return fmt.Errorf("setting %s: %w", key, err)
		}
	}
	return nil
}

// missing returns the part of a change that is not yet in effect in the table as read.
func (e *Engine) missing(change Change) Change {
	left := Change{Set: map[Key]Item{}, Delete: map[Key]Item{}}
	for key, item := range change.Set {
		if have, ok := e.known[key]; !ok || !item.Equal(have) {
			left.Set[key] = item
		}
	}
	for key, item := range change.Delete {
		if _, ok := e.known[key]; ok {
			left.Delete[key] = item
		}
	}
	return left
}

// commit makes the change in one transaction.
func (e *Engine) commit(ctx context.Context, change Change) error {
	if err := errors.Join(ctx.Err(), e.connect()); err != nil {
		return err
	}
	t := &transaction{engine: e, change: change, fields: map[string]*nftables.Set{}}
	err := e.awaken()
	if err == nil {
		err = t.build()
	}
	if err == nil {
		err = e.conn.Flush()
	}
	if err != nil {
		e.disconnect()
		if errors.Is(err, ErrInvalid) {
			return err
		}
		return fmt.Errorf("table %s %s: %w: %w", e.family, e.table.Name, ErrRefused, err)
	}
	applyTo(e.known, change)
	return nil
}

// awaken clears the table's flag dormant. It needs a transaction of its own: the kernel refuses base chains that are added in the same one
// (nf_tables_addchain in net/netfilter/nf_tables_api.c).
func (e *Engine) awaken() error {
	if !e.dormant {
		return nil
	}
	e.conn.AddTable(e.table)
	if err := e.conn.Flush(); err != nil {
		return fmt.Errorf("clearing the flag dormant: %w", err)
	}
	e.dormant = false
	return nil
}

// applyTo makes the change in a state: the content of a chain or set is removed with it.
func applyTo(state map[Key]Item, change Change) {
	for key := range change.Delete {
		delete(state, key)
		switch key.Kind {
		case KindChain:
			delete(state, Key{Kind: KindRules, Name: key.Name})
		case KindSet:
			maps.DeleteFunc(state, func(k Key, _ Item) bool { return k.Kind == KindElement && k.Name == key.Name })
		}
	}
	maps.Copy(state, change.Set)
}

// transaction is a change that is being sent to the kernel.
type transaction struct {
	engine *Engine
	change Change
	fields map[string]*nftables.Set
	// id numbers the sets that the transaction creates.
	id uint32
}

// build queues the messages in an order in which no reference is to a missing object: first add sets and chains, then remove references to
// what is deleted, then delete it, and finally add references to what was added.
func (t *transaction) build() error {
	conn, table := t.engine.conn, t.engine.table
	conn.AddTable(table)
	if err := t.addSets(); err != nil {
		return err
	}
	moved, err := t.addChains()
	if err != nil {
		return err
	}
	for _, key := range t.keys(t.change.Set, KindRules) {
		conn.FlushChain(&nftables.Chain{Table: table, Name: key.Name})
	}
	for _, key := range append(t.keys(t.change.Delete, KindRules), t.keys(t.change.Delete, KindChain)...) {
		conn.FlushChain(&nftables.Chain{Table: table, Name: key.Name})
	}
	if err := t.deleteElements(); err != nil {
		return err
	}
	for _, key := range t.keys(t.change.Delete, KindChain) {
		conn.DelChain(&nftables.Chain{Table: table, Name: key.Name})
	}
	for _, key := range t.keys(t.change.Delete, KindSet) {
		conn.DelSet(&nftables.Set{Table: table, Name: key.Name})
	}
	if err := t.addElements(); err != nil {
		return err
	}
	for _, rule := range moved {
		conn.AddRule(rule)
	}
	for _, key := range t.keys(t.change.Set, KindRules) {
		item, _ := t.change.Set[key].(*Rules)
		for i := range item.Rules {
			conn.AddRule(&nftables.Rule{
				Table: table, Chain: &nftables.Chain{Name: item.Chain},
				Exprs: item.Rules[i].expressions(t.engine.family), UserData: userData(item.Rules[i].Owner),
			})
		}
	}
	return nil
}

// keys returns the keys of one kind, sorted.
func (t *transaction) keys(items map[Key]Item, kind Kind) []Key {
	var keys []Key
	for key := range items {
		if key.Kind == kind {
			keys = append(keys, key)
		}
	}
	slices.SortFunc(keys, func(a, b Key) int {
		if c := strings.Compare(a.Name, b.Name); c != 0 {
			return c
		}
		return strings.Compare(a.Match, b.Match)
	})
	return keys
}

func (t *transaction) addSets() error {
	for _, key := range t.keys(t.change.Set, KindSet) {
		item, _ := t.change.Set[key].(*Set)
		if have, ok := t.engine.known[key]; ok {
			if item.Equal(have) {
				continue
			}
			return invalid("%s exists with another type (%s): choose another name", item, have)
		}
		t.id++
		if err := t.engine.conn.AddSet(t.kernelSet(item, t.id), nil); err != nil {
			return err
		}
	}
	return nil
}

func (t *transaction) kernelSet(item *Set, id uint32) *nftables.Set {
	kind := item.kind()
	set := &nftables.Set{Table: t.engine.table, Name: item.Name, ID: id, Interval: kind.interval, IsMap: kind.verdicts, Size: item.Most}
	if kind.verdicts {
		set.DataType = nftables.TypeVerdict
	}
	if len(item.Fields) > 1 {
		types := make([]nftables.SetDatatype, len(item.Fields))
		for i, field := range item.Fields {
			types[i] = field.info().datatype
			types[i].Bytes = uint32(field.info().size)
		}
		set.KeyType = nftables.MustConcatSetType(types...)
		set.Concatenation = kind.interval
	} else {
		set.KeyType = item.Fields[0].info().datatype
	}
	set.KeyType.Bytes = kind.size
	set.KeyType.SetNFTMagic(kind.magic)
	return set
}

// addChains queues the chains. It returns the rules of base chains that are created again, if the change has none for them.
func (t *transaction) addChains() ([]*nftables.Rule, error) {
	var moved []*nftables.Rule
	for _, key := range t.keys(t.change.Set, KindChain) {
		item, _ := t.change.Set[key].(*Chain)
		chain := &nftables.Chain{Table: t.engine.table, Name: item.Name}
		if item.Hook != "" {
			accept := nftables.ChainPolicyAccept
			chain.Type, chain.Hooknum, chain.Policy = nftables.ChainTypeFilter, hookNumber(item.Hook), &accept
			chain.Priority = new(nftables.ChainPriority(item.Priority))
		}
		if have, ok := t.engine.known[key].(*Chain); ok && !item.sameHook(have) {
			rules, err := t.engine.conn.GetRules(t.engine.table, chain)
			if err != nil {
				return nil, fmt.Errorf("rules of %s: %w", item, err)
			}
			rulesKey := Key{Kind: KindRules, Name: item.Name}
			_, set := t.change.Set[rulesKey]
			_, deleted := t.change.Delete[rulesKey]
			for _, rule := range rules {
				rule.Table, rule.Handle, rule.Position, rule.Flags = t.engine.table, 0, 0, 0
				if !set && !deleted {
					moved = append(moved, rule)
				}
			}
			t.engine.conn.FlushChain(chain)
			t.engine.conn.DelChain(chain)
		}
		t.engine.conn.AddChain(chain)
	}
	return moved, nil
}

// deleteElements queues the removal of elements that are deleted or change their verdict. Elements of a deleted set are removed with it;
// those of a verdict map are removed first, because they reference their target chains.
func (t *transaction) deleteElements() error {
	bySet := map[string][]*Element{}
	for _, key := range t.keys(t.change.Delete, KindElement) {
		item, known := t.engine.known[key].(*Element)
		if _, setGoing := t.change.Delete[Key{Kind: KindSet, Name: key.Name}]; known && !setGoing {
			bySet[key.Name] = append(bySet[key.Name], item)
		}
	}
	for _, set := range t.keys(t.change.Delete, KindSet) {
		if item, ok := t.engine.known[set].(*Set); !ok || !item.kind().verdicts {
			continue
		}
		for key, item := range t.engine.known {
			if element, ok := item.(*Element); ok && key.Name == set.Name {
				bySet[key.Name] = append(bySet[key.Name], element)
			}
		}
	}
	for _, key := range t.keys(t.change.Set, KindElement) {
		if have, ok := t.engine.known[key].(*Element); ok && !have.Equal(t.change.Set[key]) {
			bySet[key.Name] = append(bySet[key.Name], have)
		}
	}
	return t.inChunks(bySet, false)
}

func (t *transaction) addElements() error {
	bySet := map[string][]*Element{}
	for _, key := range t.keys(t.change.Set, KindElement) {
		item, _ := t.change.Set[key].(*Element)
		if have, ok := t.engine.known[key]; !ok || !item.Equal(have) {
			bySet[key.Name] = append(bySet[key.Name], item)
		}
	}
	return t.inChunks(bySet, true)
}

func (t *transaction) inChunks(bySet map[string][]*Element, add bool) error {
	for _, name := range slices.Sorted(maps.Keys(bySet)) {
		kind, err := t.kindOf(name)
		if err != nil {
			return err
		}
		set := &nftables.Set{Table: t.engine.table, Name: name, IsMap: kind.verdicts}
		for part := range slices.Chunk(bySet[name], chunk) {
			var list []nftables.SetElement
			for _, item := range part {
				elements, err := item.elements(kind, add)
				if err != nil {
					return err
				}
				list = append(list, elements...)
			}
			if add {
				err = t.engine.conn.SetAddElements(set, list)
			} else {
				err = t.engine.conn.SetDeleteElements(set, list)
			}
			if err != nil {
				return fmt.Errorf("elements of set %s: %w", name, err)
			}
		}
	}
	return nil
}

// kindOf returns the kind of a set, from the change or the known state.
func (t *transaction) kindOf(name string) (setKind, error) {
	key := Key{Kind: KindSet, Name: name}
	if item, ok := t.change.Set[key].(*Set); ok {
		return item.kind(), nil
	}
	if item, ok := t.engine.known[key].(*Set); ok {
		return item.kind(), nil
	}
	return setKind{}, invalid("elements of set %s, which does not exist", name)
}

// fits checks an element against its set.
func (e *Element) fits(kind setKind) error {
	parts := kind.parts()
	if len(e.Match) != len(parts) {
		return invalid("%s has %d parts, its set %d", e, len(e.Match), len(parts))
	}
	for i, value := range e.Match {
		if len(value.From) != parts[i] {
			return invalid("%s: part %d has %d bytes, in its set %d", e, i+1, len(value.From), parts[i])
		}
		if value.From != value.To && !kind.interval {
			return invalid("%s: its set has no intervals", e)
		}
	}
	if kind.verdicts != (e.Verdict != Verdict{}) {
		return invalid("%s: a verdict is for an element of a verdict map, and each of them has one", e)
	}
	return nil
}

// elements returns the element in the kernel's form; two for an interval in a set of one part.
func (e *Element) elements(kind setKind, add bool) ([]nftables.SetElement, error) {
	if err := e.fits(kind); err != nil {
		return nil, err
	}
	var from, to []byte
	for _, value := range e.Match {
		from, to = append(from, value.From...), append(to, value.To...)
		if len(e.Match) > 1 {
			pad := make([]byte, padded(len(value.From))-len(value.From))
			from, to = append(from, pad...), append(to, pad...)
		}
	}
	element := nftables.SetElement{Key: from}
	if e.Verdict != (Verdict{}) && add {
		element.VerdictData = e.Verdict.expression()
	}
	switch {
	case !kind.interval:
		return []nftables.SetElement{element}, nil
	case len(e.Match) > 1:
		element.KeyEnd = to
		return []nftables.SetElement{element}, nil
	}
	pair := []nftables.SetElement{element}
	if end, ok := after(string(to)); ok {
		pair = append(pair, nftables.SetElement{Key: end, IntervalEnd: true})
	}
	return pair, nil
}
