package nft

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/knftables"

	"weft.dev/weft/internal/nft/nftcli"
	"weft.dev/weft/internal/reconcile"
)

// recordAttempts limits how often rules are written again because another process changed something between the write and the listing that
// is to be recorded. If all attempts fail, the chain stays without a valid record, and the next verification writes it.
const recordAttempts = 3

// commentMax is the maximum length of a comment in nft, in bytes (NFTNL_UDATA_COMMENT_MAXLEN is 128 with the final zero).
const commentMax = 127

// Commit implements reconcile.Engine. It is one nft transaction; a second one writes the records of the changed chains. An error names the
// item that nft rejected, and wraps ErrRefused, and also ErrMissing if a referenced object does not exist. What should be removed but is
// used by rules of an unmanaged chain is left, and reported in a PartialError.
func (e *Engine) Commit(ctx context.Context, change reconcile.Change[Key, Item]) error {
	if change.Empty() {
		return nil
	}
	for key, item := range change.Set {
		if err := validate(item); err != nil {
			return fmt.Errorf("setting %s: %w", key, err)
		}
		if e.unmanaged.hides(key) {
			return fmt.Errorf("setting %s: the chain's rules are not the engine's", key)
		}
		if key.Kind != KindForeignJump {
			e.take(key.table())
		}
	}
	if e.known == nil {
		if _, err := e.Read(ctx); err != nil {
			return err
		}
	}
	if err := e.refreshForeign(ctx, change); err != nil {
		return err
	}
	err := e.commit(ctx, change)
	if errors.Is(err, ErrRefused) {
		// The known state may be stale: another program removed or added what this change removes or adds.
		if _, readErr := e.Read(ctx); readErr != nil {
			return errors.Join(err, readErr)
		}
		err = e.commit(ctx, change)
	}
	failed := map[Key]error{}
	for {
		key, busy := inUse(err, change)
		if !busy {
			break
		}
		failed[key] = err
		change.Delete = maps.Clone(change.Delete)
		delete(change.Delete, key)
		err = e.commit(ctx, change)
	}
	if err == nil && len(failed) > 0 {
		return &reconcile.PartialError[Key]{Failed: failed}
	}
	return err
}

// inUse returns the stray that cannot be removed because rules of another program use it (Options.Unmanaged). It must not keep other items
// from being removed.
func inUse(err error, change reconcile.Change[Key, Item]) (Key, bool) {
	var refused *itemError
	if !errors.As(err, &refused) || !strings.Contains(refused.err.Words, "Device or resource busy") {
		return Key{}, false
	}
	_, stray := change.Delete[refused.key]
	return refused.key, stray
}

// refreshForeign reads the handles of rules in foreign chains if a change concerns any: they are removed by handle, and a commit does not
// return the handles of what it adds.
func (e *Engine) refreshForeign(ctx context.Context, change reconcile.Change[Key, Item]) error {
	concerned := false
	for key := range ofKind[*ForeignJump](change.Set) {
		concerned = concerned || key.Kind == KindForeignJump
	}
	for key := range ofKind[*ForeignJump](change.Delete) {
		concerned = concerned || key.Kind == KindForeignJump
	}
	if !concerned {
		return nil
	}
	e.foreign.Store(true)
	maps.DeleteFunc(e.known, func(key Key, _ Item) bool { return key.Kind == KindForeignJump })
	if err := e.readForeign(ctx, e.known); err != nil {
		return fmt.Errorf("reading foreign chains: %w", err)
	}
	return nil
}

func (e *Engine) commit(ctx context.Context, change reconcile.Change[Key, Item]) error {
	for attempt := 1; ; attempt++ {
		before, err := e.namespace.Generation()
		if err != nil {
			return err
		}
		if err := e.write(ctx, change); err != nil {
			return err
		}
		for key := range change.Delete {
			delete(e.known, key)
		}
		maps.Copy(e.known, change.Set)
		e.forgetTables(change)
		rules := changedRules(change)
		if len(rules) == 0 {
			return nil
		}
		undisturbed, err := e.record(ctx, rules, before)
		if err != nil {
			return fmt.Errorf("recording the rules: %w", err)
		}
		if undisturbed || attempt == recordAttempts {
			return nil
		}
	}
}

// forgetTables deletes the known state of deleted tables.
func (e *Engine) forgetTables(change reconcile.Change[Key, Item]) {
	for key := range change.Delete {
		if key.Kind == KindTable {
			delete(e.records, key.table())
			maps.DeleteFunc(e.known, func(k Key, _ Item) bool { return k.table() == key.table() && k.Kind != KindForeignJump })
		}
	}
}

// write builds the transaction and runs it.
func (e *Engine) write(ctx context.Context, change reconcile.Change[Key, Item]) error {
	tx, err := e.transaction()
	if err != nil {
		return err
	}
	b := &build{engine: e, ctx: ctx, change: change, tx: tx}
	if err := b.all(); err != nil {
		return err
	}
	if b.tx.NumOperations() == 0 {
		return nil
	}
	text := b.tx.String()
	// A Transaction returns its first error only from Run, which is not used here, and as its last line. No other line contains a hash sign.
	if i := strings.LastIndex("\n"+text, "\n# ERROR: "); i >= 0 {
		return fmt.Errorf("building the transaction: %s", text[i+len("# ERROR: "):])
	}
	err = e.change(ctx, text)
	var refused *nftcli.Error
	if errors.As(err, &refused) && refused.Line > 0 && refused.Line <= len(b.lines) {
		return &itemError{b.lines[refused.Line-1], refused}
	}
	return err
}

// itemError is nft's error about the operation of an item.
type itemError struct {
	key Key
	err *nftcli.Error
}

// Error implements error.
func (e *itemError) Error() string { return fmt.Sprintf("%s: %v", e.key, e.err) }

// Unwrap returns nft's error.
func (e *itemError) Unwrap() error { return e.err }

// build collects one transaction. Each operation is one line of it, so that nft's line numbers identify the items.
type build struct {
	engine *Engine
	ctx    context.Context //nolint:containedctx // lives as long as the call that made it
	change reconcile.Change[Key, Item]
	tx     *knftables.Transaction
	lines  []Key
}

func (b *build) add(key Key, object knftables.Object) {
	b.tx.Add(object)
	b.lines = append(b.lines, key)
}

func (b *build) flush(key Key, object knftables.Object) {
	b.tx.Flush(object)
	b.lines = append(b.lines, key)
}

func (b *build) remove(key Key, object knftables.Object) {
	b.tx.Delete(object)
	b.lines = append(b.lines, key)
}

// all adds the operations in an order in which each finds what it needs: containers before their content, objects before references to
// them. Removals have the reverse order.
func (b *build) all() error {
	for key := range ofKind[*Table](b.change.Set) {
		b.add(key, &knftables.Table{Family: knftables.Family(key.Family), Name: key.Table})
	}
	rebuilt, err := b.chains()
	if err != nil {
		return err
	}
	b.sets()
	b.elements()
	for key, rules := range ofKind[*ChainRules](b.change.Set) {
		b.flush(key, chainObjectOf(key))
		for _, rule := range rules.Rules {
			object := &knftables.Rule{Family: knftables.Family(key.Family), Table: key.Table, Chain: key.Name, Rule: rule.Text}
			if rule.Owner != "" {
				object.Comment = &rule.Owner
			}
			b.add(key, object)
		}
	}
	for key, lines := range rebuilt {
		for _, line := range lines {
			b.add(key, &knftables.Rule{Family: knftables.Family(key.Family), Table: key.Table, Chain: key.Name, Rule: line})
		}
	}
	b.foreign()
	b.removals()
	return nil
}

// ofKind iterates over the items of one type, sorted by key.
func ofKind[T Item](items map[Key]Item) func(yield func(Key, T) bool) {
	type keyed struct {
		text string // computed once: a change may have thousands of elements
		key  Key
		item T
	}
	var found []keyed
	for key, value := range items {
		if item, ok := value.(T); ok {
			found = append(found, keyed{key.String(), key, item})
		}
	}
	slices.SortFunc(found, func(a, b keyed) int { return strings.Compare(a.text, b.text) })
	return func(yield func(Key, T) bool) {
		for _, f := range found {
			if !yield(f.key, f.item) {
				return
			}
		}
	}
}

// setsOf returns the sets and maps among the items.
func setsOf(items map[Key]Item) map[Key]Item {
	found := map[Key]Item{}
	for key, item := range items {
		if key.Kind == KindSet || key.Kind == KindMap {
			found[key] = item
		}
	}
	return found
}

func chainObjectOf(key Key) *knftables.Chain {
	return &knftables.Chain{Family: knftables.Family(key.Family), Table: key.Table, Name: key.Name}
}

// chains adds chains. A chain whose hook changes has to be created again; if its rules do not change, they are read from the kernel, in
// nft's syntax, and returned.
func (b *build) chains() (map[Key][]string, error) {
	rebuilt := map[Key][]string{}
	for key, chain := range ofKind[*Chain](b.change.Set) {
		want := chain.normalised()
		if b.reshapes(key, want) {
			rulesKey := Key{key.Family, key.Table, KindRules, key.Name}
			if _, ok := b.change.Set[rulesKey]; !ok {
				lines, err := b.engine.chainLines(b.ctx, key)
				if err != nil {
					return nil, fmt.Errorf("%s: %w", key, err)
				}
				rebuilt[key] = lines
			}
			b.flush(key, chainObjectOf(key))
			b.remove(key, chainObjectOf(key))
		}
		b.add(key, want.object())
	}
	return rebuilt, nil
}

// reshapes reports whether a chain exists with another hook than desired.
func (b *build) reshapes(key Key, want Chain) bool {
	have, ok := b.engine.known[key].(*Chain)
	if !ok {
		return false
	}
	old := have.normalised()
	old.Policy = want.Policy
	return old != want
}

func (c *Chain) object() *knftables.Chain {
	object := chainObjectOf(c.Key())
	if c.Hook != "" {
		object.Type = new(knftables.BaseChainType(c.Type))
		object.Hook = new(knftables.BaseChainHook(c.Hook))
		object.Priority = new(knftables.BaseChainPriority(strconv.Itoa(c.Priority)))
		object.Policy = new(knftables.BaseChainPolicy(c.Policy))
	}
	if c.Device != "" {
		object.Device = &c.Device
	}
	return object
}

// chainLines returns a chain's rules in nft's syntax.
func (e *Engine) chainLines(ctx context.Context, key Key) ([]string, error) {
	text, err := e.namespace.Run(ctx, "-s", "-n", "list", "chain", string(key.Family), key.Table, key.Name)
	if errors.Is(err, ErrMissing) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return ruleLines(parseBlocks(string(text))[blockKey{"chain", key.Name}]), nil
}

// sets adds sets and maps. If the type or flags change, the set is created again with its elements; nft rejects this while rules use it.
func (b *build) sets() {
	for key, item := range ofKind[Item](setsOf(b.change.Set)) {
		if have, ok := b.engine.known[key]; ok && !have.Equal(item) {
			b.remove(key, setObjectOf(have))
			b.add(key, setObjectOf(item))
			for elementKey, element := range ofKind[*Element](b.engine.known) {
				_, changed := b.change.Set[elementKey]
				_, removed := b.change.Delete[elementKey]
				if element.Set == key.Name && elementKey.table() == key.table() && !changed && !removed {
					b.add(elementKey, b.element(element))
				}
			}
			continue
		}
		b.add(key, setObjectOf(item))
	}
}

func setObjectOf(item Item) knftables.Object {
	flagsOf := func(flags []SetFlag) (list []knftables.SetFlag) {
		for _, flag := range flags {
			list = append(list, knftables.SetFlag(flag))
		}
		return list
	}
	sizeOf := func(size uint64) *uint64 {
		if size == 0 {
			return nil
		}
		return &size
	}
	switch item := item.(type) {
	case *Set:
		return &knftables.Set{
			Family: knftables.Family(item.Family), Table: item.Table, Name: item.Name, Type: item.Type,
			Flags: flagsOf(item.Flags), Size: sizeOf(item.Size),
		}
	case *Map:
		return &knftables.Map{
			Family: knftables.Family(item.Family), Table: item.Table, Name: item.Name, Type: item.Type + " : " + item.Value,
			Flags: flagsOf(item.Flags), Size: sizeOf(item.Size),
		}
	}
	return nil
}

// definition returns the set or map of an element: from the change, else from the known state.
func (b *build) definition(element *Element) Item {
	for _, kind := range []Kind{KindSet, KindMap} {
		key := Key{element.Family, element.Table, kind, element.Set}
		if item, ok := b.change.Set[key]; ok {
			return item
		}
		if item, ok := b.engine.known[key]; ok {
			return item
		}
	}
	return nil
}

// element returns the element for nft: a map's or a set's, with interface names quoted.
func (b *build) element(e *Element) *knftables.Element {
	object := &knftables.Element{Family: knftables.Family(e.Family), Table: e.Table, Key: slices.Clone(e.Match), Value: e.Value}
	definition := b.definition(e)
	var types string
	switch definition := definition.(type) {
	case *Map:
		object.Map, types = e.Set, definition.Type
	case *Set:
		object.Set, types = e.Set, definition.Type
	default: // nft reports that it does not exist
		object.Set = e.Set
		if len(e.Value) > 0 {
			object.Set, object.Map = "", e.Set
		}
	}
	for i, part := range strings.Split(types, " . ") {
		if part == "ifname" && i < len(object.Key) {
			object.Key[i] = strconv.Quote(object.Key[i])
		}
	}
	if e.Owner != "" {
		object.Comment = &e.Owner
	}
	return object
}

// elements removes and adds elements. A changed element is removed and added: adding alone would keep the old value.
func (b *build) elements() {
	gone := func(key Key) bool {
		for _, kind := range []Kind{KindSet, KindMap} {
			setName, _, _ := strings.Cut(key.Name, " ")
			setKey := Key{key.Family, key.Table, kind, setName}
			if _, deleted := b.change.Delete[setKey]; deleted {
				return true
			}
			want, set := b.change.Set[setKey]
			have, known := b.engine.known[setKey]
			if set && known && !have.Equal(want) {
				return true // created again, without its old elements
			}
		}
		return b.tableGoes(key)
	}
	for key, element := range ofKind[*Element](b.change.Delete) {
		if have, ok := b.engine.known[key].(*Element); ok && !gone(key) {
			b.remove(key, b.element(have))
		}
		_ = element
	}
	for key, element := range ofKind[*Element](b.change.Set) {
		if have, ok := b.engine.known[key].(*Element); ok && !gone(key) {
			b.remove(key, b.element(have))
		}
		b.add(key, b.element(element))
	}
}

// tableGoes reports whether the table of a key is being deleted, with everything in it.
func (b *build) tableGoes(key Key) bool {
	_, goes := b.change.Delete[Key{key.Family, key.Table, KindTable, ""}]
	return goes
}

// removals deletes what is known to exist.
func (b *build) removals() {
	stands := func(key Key) bool {
		_, ok := b.engine.known[key]
		return ok && !b.tableGoes(key) && !b.engine.unmanaged[key]
	}
	for key := range ofKind[*ChainRules](b.change.Delete) {
		if stands(key) {
			b.flush(key, chainObjectOf(key))
		}
	}
	for key := range ofKind[*Chain](b.change.Delete) {
		if stands(key) {
			b.flush(key, chainObjectOf(key))
		}
	}
	for key := range ofKind[*Chain](b.change.Delete) {
		if stands(key) {
			b.remove(key, chainObjectOf(key))
		}
	}
	for key, item := range ofKind[Item](setsOf(b.change.Delete)) {
		if stands(key) {
			b.remove(key, setObjectOf(item))
		}
	}
	for key := range ofKind[*Table](b.change.Delete) {
		if _, ok := b.engine.known[key]; ok {
			b.remove(key, &knftables.Table{Family: knftables.Family(key.Family), Name: key.Table})
		}
	}
}

// changedRules returns the chains whose records a change makes obsolete, by table.
func changedRules(change reconcile.Change[Key, Item]) map[tableKey]map[string]*ChainRules {
	found := map[tableKey]map[string]*ChainRules{}
	note := func(key Key, rules *ChainRules) {
		if _, goes := change.Delete[Key{key.Family, key.Table, KindTable, ""}]; goes {
			return
		}
		if found[key.table()] == nil {
			found[key.table()] = map[string]*ChainRules{}
		}
		found[key.table()][key.Name] = rules
	}
	for key := range ofKind[*ChainRules](change.Delete) {
		note(key, nil)
	}
	for key, rules := range ofKind[*ChainRules](change.Set) {
		note(key, rules)
	}
	return found
}

// record writes the records of changed chains. It reports whether there was no other transaction since the generation before the commit, so
// that the listing shows what was committed; otherwise it writes none.
func (e *Engine) record(ctx context.Context, rules map[tableKey]map[string]*ChainRules, before uint32) (bool, error) {
	listings := map[tableKey]map[blockKey][]string{}
	for table := range rules {
		blocks, err := e.listText(ctx, table)
		if errors.Is(err, ErrMissing) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		listings[table] = blocks
	}
	after, err := e.namespace.Generation()
	if err != nil || after != nextGeneration(before) {
		return false, err
	}
	tx, err := e.transaction()
	if err != nil {
		return false, err
	}
	for table, chains := range rules {
		next := maps.Clone(e.records[table])
		if next == nil {
			next = map[string]record{}
		}
		for chain, rules := range chains {
			delete(next, recordKey(chain))
			if rules != nil {
				lines := ruleLines(listings[table][blockKey{"chain", chain}])
				next[recordKey(chain)] = record{desired: rules.Digest(), listed: digestLines(lines)}
			}
		}
		e.records[table] = next
		writeRecords(tx, table, next)
	}
	return true, e.change(ctx, tx.String())
}

func writeRecords(tx *knftables.Transaction, table tableKey, records map[string]record) {
	family := knftables.Family(table.family)
	set := &knftables.Set{Family: family, Table: table.name, Name: StateSet, Type: "ipv6_addr"}
	tx.Add(set)
	tx.Flush(set)
	for _, key := range slices.Sorted(maps.Keys(records)) {
		comment := records[key].String()
		tx.Add(&knftables.Element{Family: family, Table: table.name, Set: StateSet, Key: []string{key}, Comment: &comment})
	}
}
