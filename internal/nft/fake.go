package nft

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"

	"weft.dev/weft/internal/reconcile"
)

// Fake is an Engine in memory. It keeps what the kernel keeps, and rejects what the kernel rejects: items of missing tables, elements of
// missing sets, jumps to missing chains, and the removal of what is still used.
type Fake struct {
	mutex     sync.Mutex
	state     map[Key]Item
	foreign   map[Key]Chain // foreign base chains
	unmanaged Unmanaged
	commits   int
}

var _ reconcile.Engine[Key, Item] = (*Fake)(nil)

// NewFake returns an empty Fake in which the given foreign base chains exist.
func NewFake(foreign ...Chain) *Fake {
	f := &Fake{state: map[Key]Item{}, foreign: map[Key]Chain{}}
	for i := range foreign {
		f.PutForeign(foreign[i])
	}
	return f
}

// Unmanage sets the chains whose rules are not managed, like the real engine's option. It must be called before anything else.
func (f *Fake) Unmanage(chains ...Chain) { f.unmanaged = NewUnmanaged(chains) }

// PutForeign adds an empty foreign base chain, or replaces one with everything in it.
func (f *Fake) PutForeign(chain Chain) {
	f.ForgetForeign(chain.Key())
	f.mutex.Lock()
	defer f.mutex.Unlock()
	f.foreign[chain.Key()] = chain
}

// ForgetForeign removes a foreign base chain as its owner would.
func (f *Fake) ForgetForeign(key Key) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	delete(f.foreign, key)
	maps.DeleteFunc(f.state, func(_ Key, item Item) bool {
		jump, ok := item.(*ForeignJump)
		return ok && jump.Chain == key.Name && jump.Key().sameTable(key)
	})
}

// Survey considers only the policies of the foreign base chains; the engine's also considers their rules.
func (f *Fake) Survey(ctx context.Context, traffic ...Traffic) (*Survey, error) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	survey := &Survey{Watched: map[Key]bool{}}
	for key, chain := range f.foreign {
		survey.Watched[key] = true
		for _, kind := range traffic {
			if chain.Hook != kind.Hook || chain.Policy != PolicyDrop {
				continue
			}
			survey.Drops = append(survey.Drops, ForeignDrop{
				Family: chain.Family, Table: chain.Table, Chain: chain.Name, Hook: chain.Hook, Priority: chain.Priority, Traffic: kind,
				Rule: "policy drop", In: chain.Name,
				Openable: Openable(chain.Family, chain.Hook),
			})
		}
	}
	return survey, ctx.Err()
}

// Commits returns the number of commits that have changed something.
func (f *Fake) Commits() int {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	return f.commits
}

// Read implements reconcile.Engine.
func (f *Fake) Read(ctx context.Context) (map[Key]Item, error) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	return f.unmanaged.LeaveOut(maps.Clone(f.state)), ctx.Err()
}

// Commit implements reconcile.Engine.
func (f *Fake) Commit(ctx context.Context, change reconcile.Change[Key, Item]) error {
	if err := ctx.Err(); err != nil || change.Empty() {
		return err
	}
	for key, item := range change.Set {
		if err := Validate(item); err != nil {
			return fmt.Errorf("setting %s: %w", key, err)
		}
		if f.unmanaged.Hides(key) {
			return fmt.Errorf("setting %s: the chain's rules are not the engine's", key)
		}
	}
	f.mutex.Lock()
	defer f.mutex.Unlock()
	next := f.apply(change)
	for key, item := range next {
		if err := f.check(next, item); err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
	}
	f.state, f.commits = next, f.commits+1
	return nil
}

// apply returns the state after a change, without what is removed together with other items.
func (f *Fake) apply(change reconcile.Change[Key, Item]) map[Key]Item {
	next := change.Apply(f.state)
	for key := range change.Delete {
		if key.Kind == KindTable {
			dropTable(next, key)
		}
		if item, ok := f.state[key]; ok && f.unmanaged[key] {
			next[key] = item
			continue
		}
		if key.Kind == KindChain {
			delete(next, key.Sibling(KindRules, key.Name))
		}
		if key.Kind == KindSet || key.Kind == KindMap {
			dropElements(next, key)
		}
	}
	return next
}

func dropTable(state map[Key]Item, table Key) {
	maps.DeleteFunc(state, func(key Key, _ Item) bool {
		return key.sameTable(table) && key.Kind != KindForeignJump
	})
}

func dropElements(state map[Key]Item, set Key) {
	maps.DeleteFunc(state, func(_ Key, item Item) bool {
		element, ok := item.(*Element)
		return ok && element.Set == set.Name && element.Key().sameTable(set)
	})
}

// missing returns the Fake's error about a reference.
func missing(kind, name string) error {
	return fmt.Errorf("%s %s: %w: %w", kind, name, ErrRefused, ErrMissing)
}

// The references to other objects in a rule or verdict.
//
//nolint:gochecknoglobals // constant patterns
var (
	jumpPattern = regexp.MustCompile(`\b(?:jump|goto) ([A-Za-z0-9_.-]+)`)
	setPattern  = regexp.MustCompile(`@([A-Za-z_][A-Za-z0-9_.-]*)`)
)

func (f *Fake) check(state map[Key]Item, item Item) error {
	key := item.Key()
	if jump, ok := item.(*ForeignJump); ok {
		if _, ok := f.foreign[Key{jump.Family, jump.Table, KindChain, jump.Chain}]; !ok {
			return missing("chain", jump.Chain)
		}
		return nil
	}
	within := func(kind Kind, name string) bool {
		_, ok := state[Key{key.Family, key.Table, kind, name}]
		return ok
	}
	if !within(KindTable, "") {
		return missing("table", key.Table)
	}
	switch item := item.(type) {
	case *ChainRules:
		if !within(KindChain, item.Chain) {
			return missing("chain", item.Chain)
		}
		for _, rule := range item.Rules {
			if err := checkReferences(rule.Text, within); err != nil {
				return err
			}
		}
	case *Element:
		if !within(KindSet, item.Set) && !within(KindMap, item.Set) {
			return missing("set", item.Set)
		}
		return checkReferences(strings.Join(item.Value, " "), within)
	}
	return nil
}

func checkReferences(text string, within func(Kind, string) bool) error {
	for _, match := range jumpPattern.FindAllStringSubmatch(text, -1) {
		if !within(KindChain, match[1]) {
			return missing("chain", match[1])
		}
	}
	for _, match := range setPattern.FindAllStringSubmatch(text, -1) {
		if !within(KindSet, match[1]) && !within(KindMap, match[1]) {
			return missing("set", match[1])
		}
	}
	return nil
}

// AlterRules changes the rules of a chain as another program would, without the engine.
func (f *Fake) AlterRules(key Key, change func([]Rule) []Rule) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	rules, ok := f.state[key].(*ChainRules)
	if !ok {
		return
	}
	altered := *rules
	altered.Rules = change(slices.Clone(rules.Rules))
	altered.altered = fmt.Sprintf("now %d rules", len(altered.Rules))
	f.state[key] = &altered
}

// Forget removes an item as another program would, a table with everything in it.
func (f *Fake) Forget(key Key) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	delete(f.state, key)
	if key.Kind == KindTable {
		dropTable(f.state, key)
	}
}

// Exists reports whether an item exists, also one that Read omits.
func (f *Fake) Exists(key Key) bool {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	_, ok := f.state[key]
	return ok
}

// Put adds an item as another program would.
func (f *Fake) Put(item Item) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	f.state[item.Key()] = item
}
