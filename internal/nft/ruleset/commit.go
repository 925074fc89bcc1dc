package ruleset

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/knftables"

	"weft.dev/weft/internal/nft"
	"weft.dev/weft/internal/nft/nftcli"
	"weft.dev/weft/internal/reconcile"
)

// recordAttempts limits how often rules are written again because another process changed something between the write and the listing that
// is to be recorded. If all attempts fail, the chain stays without a valid record, and the next verification writes it.
const recordAttempts = 3

// Commit implements reconcile.Engine. It is one transaction of nft; a second one, by netlink, writes the records of the changed chains. An error names the
// item that nft rejected, and wraps ErrRefused, and also ErrMissing if a referenced object does not exist. What should be removed but is
// used by rules of an unmanaged chain is left, and reported in a PartialError.
func (e *Engine) Commit(ctx context.Context, change reconcile.Change[nft.Key, nft.Item]) error {
	if change.Empty() {
		return nil
	}
	for key, item := range change.Set {
		if err := nft.Validate(item); err != nil {
			return fmt.Errorf("setting %s: %w", key, err)
		}
		if e.unmanaged.Hides(key) {
			return fmt.Errorf("setting %s: the chain's rules are not the engine's", key)
		}
		if key.Kind != nft.KindForeignJump {
			e.take(tableOf(key))
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
	if errors.Is(err, nft.ErrRefused) {
		// The known state may be stale: another program removed or added what this change removes or adds.
		if _, readErr := e.Read(ctx); readErr != nil {
			return errors.Join(err, readErr)
		}
		err = e.commit(ctx, change)
	}
	failed := map[nft.Key]error{}
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
		return &reconcile.PartialError[nft.Key]{Failed: failed}
	}
	return err
}

// inUse returns the stray that cannot be removed because rules of another program use it (Options.Unmanaged). It must not keep other items
// from being removed.
func inUse(err error, change reconcile.Change[nft.Key, nft.Item]) (nft.Key, bool) {
	var refused *itemError
	if !errors.As(err, &refused) || !strings.Contains(refused.err.Words, "Device or resource busy") {
		return nft.Key{}, false
	}
	_, stray := change.Delete[refused.key]
	return refused.key, stray
}

// refreshForeign reads the handles of rules in foreign chains if a change concerns any: they are removed by handle, and a commit does not
// return the handles of what it adds.
func (e *Engine) refreshForeign(ctx context.Context, change reconcile.Change[nft.Key, nft.Item]) error {
	concerned := false
	for key := range ofKind[*nft.ForeignJump](change.Set) {
		concerned = concerned || key.Kind == nft.KindForeignJump
	}
	for key := range ofKind[*nft.ForeignJump](change.Delete) {
		concerned = concerned || key.Kind == nft.KindForeignJump
	}
	if !concerned {
		return nil
	}
	e.foreign.Store(true)
	maps.DeleteFunc(e.known, func(key nft.Key, _ nft.Item) bool { return key.Kind == nft.KindForeignJump })
	if err := e.readForeign(ctx, e.known); err != nil {
		return fmt.Errorf("reading foreign chains: %w", err)
	}
	return nil
}

func (e *Engine) commit(ctx context.Context, change reconcile.Change[nft.Key, nft.Item]) error {
	if err := awaken(ctx, e, change); err != nil {
		return err
	}
	for attempt := 1; ; attempt++ {
		before, err := e.namespace.Generation()
		if err != nil {
			return err
		}
		rules := e.changedRules(change)
		if err := e.write(ctx, change, rules); err != nil {
			return err
		}
		for key := range change.Delete {
			delete(e.known, key)
		}
		maps.Copy(e.known, change.Set)
		e.forgetTables(change)
		if len(rules) == 0 {
			return nil
		}
		undisturbed, err := e.record(rules, before)
		if err != nil {
			return fmt.Errorf("recording the rules: %w", err)
		}
		if undisturbed || attempt == recordAttempts {
			return nil
		}
	}
}

// forgetTables deletes the known state of deleted tables.
func (e *Engine) forgetTables(change reconcile.Change[nft.Key, nft.Item]) {
	for key := range change.Delete {
		if key.Kind == nft.KindTable {
			delete(e.records, tableOf(key))
			maps.DeleteFunc(e.known, func(k nft.Key, _ nft.Item) bool { return tableOf(k) == tableOf(key) && k.Kind != nft.KindForeignJump })
		}
	}
}

// write builds the transaction and runs it.
func (e *Engine) write(ctx context.Context, change reconcile.Change[nft.Key, nft.Item], rules changedRules) error {
	tx, err := e.transaction()
	if err != nil {
		return err
	}
	b := &build{engine: e, ctx: ctx, change: change, rules: rules, tx: tx}
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
	key nft.Key
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
	change reconcile.Change[nft.Key, nft.Item]
	rules  changedRules
	tx     *knftables.Transaction
	lines  []nft.Key
}

func (b *build) add(key nft.Key, object knftables.Object) {
	b.tx.Add(object)
	b.lines = append(b.lines, key)
}

func (b *build) flush(key nft.Key, object knftables.Object) {
	b.tx.Flush(object)
	b.lines = append(b.lines, key)
}

func (b *build) remove(key nft.Key, object knftables.Object) {
	b.tx.Delete(object)
	b.lines = append(b.lines, key)
}

// all adds the operations in an order in which each finds what it needs: containers before their content, objects before references to
// them. Removals have the reverse order.
func (b *build) all() error {
	for key := range ofKind[*nft.Table](b.change.Set) {
		b.add(key, &knftables.Table{Family: knftables.Family(key.Family), Name: key.Table})
	}
	for table := range b.rules {
		b.add(table.object(nft.KindTable, ""), stateSet(table))
	}
	rebuilt, err := b.chains()
	if err != nil {
		return err
	}
	b.sets()
	b.elements()
	for key, rules := range ofKind[*nft.ChainRules](b.change.Set) {
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
func ofKind[T nft.Item](items map[nft.Key]nft.Item) func(yield func(nft.Key, T) bool) {
	type keyed struct {
		text string // computed once: a change may have thousands of elements
		key  nft.Key
		item T
	}
	var found []keyed
	for key, value := range items {
		if item, ok := value.(T); ok {
			found = append(found, keyed{key.String(), key, item})
		}
	}
	slices.SortFunc(found, func(a, b keyed) int { return strings.Compare(a.text, b.text) })
	return func(yield func(nft.Key, T) bool) {
		for _, f := range found {
			if !yield(f.key, f.item) {
				return
			}
		}
	}
}

// setsOf returns the sets and maps among the items.
func setsOf(items map[nft.Key]nft.Item) map[nft.Key]nft.Item {
	found := map[nft.Key]nft.Item{}
	for key, item := range items {
		if key.Kind == nft.KindSet || key.Kind == nft.KindMap {
			found[key] = item
		}
	}
	return found
}

func chainObjectOf(key nft.Key) *knftables.Chain {
	return &knftables.Chain{Family: knftables.Family(key.Family), Table: key.Table, Name: key.Name}
}

// chains adds chains. A chain whose hook changes has to be created again; if its rules do not change, they are read from the kernel, in
// nft's syntax, and returned.
func (b *build) chains() (map[nft.Key][]string, error) {
	rebuilt := map[nft.Key][]string{}
	for key, chain := range ofKind[*nft.Chain](b.change.Set) {
		want := chain.Normalised()
		if b.engine.reshapes(key, want) {
			rulesKey := key.Sibling(nft.KindRules, key.Name)
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
		b.add(key, baseObjectOf(&want))
	}
	return rebuilt, nil
}

// reshapes reports whether a chain exists with another hook than desired.
func (e *Engine) reshapes(key nft.Key, want nft.Chain) bool {
	have, ok := e.known[key].(*nft.Chain)
	if !ok {
		return false
	}
	old := have.Normalised()
	old.Policy = want.Policy
	return old != want
}

// baseObjectOf returns a chain with what makes it a base chain.
func baseObjectOf(c *nft.Chain) *knftables.Chain {
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
func (e *Engine) chainLines(ctx context.Context, key nft.Key) ([]string, error) {
	text, err := e.namespace.Run(ctx, "-s", "-n", "list", "chain", string(key.Family), key.Table, key.Name)
	if errors.Is(err, nft.ErrMissing) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return ruleLines(parseBlocks(string(text))[blockKey{"chain", key.Name}]), nil
}

// sets adds sets and maps. If the type or flags change, the set is created again with its elements; nft rejects this while rules use it.
func (b *build) sets() {
	for key, item := range ofKind[nft.Item](setsOf(b.change.Set)) {
		if have, ok := b.engine.known[key]; ok && !have.Equal(item) {
			b.remove(key, setObjectOf(have))
			b.add(key, setObjectOf(item))
			for elementKey, element := range ofKind[*nft.Element](b.engine.known) {
				_, changed := b.change.Set[elementKey]
				_, removed := b.change.Delete[elementKey]
				if element.Set == key.Name && tableOf(elementKey) == tableOf(key) && !changed && !removed {
					b.add(elementKey, b.element(element))
				}
			}
			continue
		}
		b.add(key, setObjectOf(item))
	}
}

func setObjectOf(item nft.Item) knftables.Object {
	flagsOf := func(flags []nft.SetFlag) (list []knftables.SetFlag) {
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
	case *nft.Set:
		return &knftables.Set{
			Family: knftables.Family(item.Family), Table: item.Table, Name: item.Name, Type: item.Type,
			Flags: flagsOf(item.Flags), Size: sizeOf(item.Size),
		}
	case *nft.Map:
		return &knftables.Map{
			Family: knftables.Family(item.Family), Table: item.Table, Name: item.Name, Type: item.Type + " : " + item.Value,
			Flags: flagsOf(item.Flags), Size: sizeOf(item.Size),
		}
	}
	return nil
}

// definition returns the set or map of an element: from the change, else from the known state.
func (b *build) definition(element *nft.Element) nft.Item {
	for _, kind := range []nft.Kind{nft.KindSet, nft.KindMap} {
		key := nft.Key{Family: element.Family, Table: element.Table, Kind: kind, Name: element.Set}
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
func (b *build) element(e *nft.Element) *knftables.Element {
	object := &knftables.Element{Family: knftables.Family(e.Family), Table: e.Table, Key: slices.Clone(e.Match), Value: e.Value}
	definition := b.definition(e)
	var types string
	switch definition := definition.(type) {
	case *nft.Map:
		object.Map, types = e.Set, definition.Type
	case *nft.Set:
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
	gone := func(key nft.Key) bool {
		for _, kind := range []nft.Kind{nft.KindSet, nft.KindMap} {
			setName, _, _ := strings.Cut(key.Name, " ")
			setKey := key.Sibling(kind, setName)
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
	for key, element := range ofKind[*nft.Element](b.change.Delete) {
		if have, ok := b.engine.known[key].(*nft.Element); ok && !gone(key) {
			b.remove(key, b.element(have))
		}
		_ = element
	}
	for key, element := range ofKind[*nft.Element](b.change.Set) {
		if have, ok := b.engine.known[key].(*nft.Element); ok && !gone(key) {
			b.remove(key, b.element(have))
		}
		b.add(key, b.element(element))
	}
}

// tableGoes reports whether the table of a key is being deleted, with everything in it.
func (b *build) tableGoes(key nft.Key) bool {
	_, goes := b.change.Delete[key.Sibling(nft.KindTable, "")]
	return goes
}

// removals deletes what is known to exist.
func (b *build) removals() {
	stands := func(key nft.Key) bool {
		_, ok := b.engine.known[key]
		return ok && !b.tableGoes(key) && !b.engine.unmanaged[key]
	}
	for key := range ofKind[*nft.ChainRules](b.change.Delete) {
		if stands(key) {
			b.flush(key, chainObjectOf(key))
		}
	}
	for key := range ofKind[*nft.Chain](b.change.Delete) {
		if stands(key) {
			b.flush(key, chainObjectOf(key))
		}
	}
	for key := range ofKind[*nft.Chain](b.change.Delete) {
		if stands(key) {
			b.remove(key, chainObjectOf(key))
		}
	}
	for key, item := range ofKind[nft.Item](setsOf(b.change.Delete)) {
		if stands(key) {
			b.remove(key, setObjectOf(item))
		}
	}
	for key := range ofKind[*nft.Table](b.change.Delete) {
		if _, ok := b.engine.known[key]; ok {
			b.remove(key, &knftables.Table{Family: knftables.Family(key.Family), Name: key.Table})
		}
	}
}

// changedRules are the chains of tables whose records a change makes obsolete, with their rules; nil: they are removed.
type changedRules map[tableKey]map[string]*nft.ChainRules

// changedRules returns the chains whose rules change, and those that are created again with the rules that they have. Rules that another
// program has changed get no new record. A table that another program has deleted has no records.
func (e *Engine) changedRules(change reconcile.Change[nft.Key, nft.Item]) changedRules {
	found := changedRules{}
	note := func(key nft.Key, rules *nft.ChainRules) {
		table := key.Sibling(nft.KindTable, "")
		_, goes := change.Delete[table]
		_, exists := e.known[table]
		if _, comes := change.Set[table]; goes || !exists && !comes {
			return
		}
		if found[tableOf(key)] == nil {
			found[tableOf(key)] = map[string]*nft.ChainRules{}
		}
		found[tableOf(key)][key.Name] = rules
	}
	for key, chain := range ofKind[*nft.Chain](change.Set) {
		rules, there := e.known[key.Sibling(nft.KindRules, key.Name)].(*nft.ChainRules)
		if !there || rules.Altered() || !e.reshapes(key, chain.Normalised()) {
			continue
		}
		if e.records[tableOf(key)][recordKey(key.Name)].holds(e.namespace, key) {
			note(key, rules)
		}
	}
	for key := range ofKind[*nft.ChainRules](change.Delete) {
		note(key, nil)
	}
	for key, rules := range ofKind[*nft.ChainRules](change.Set) {
		note(key, rules)
	}
	return found
}
