package ruleset

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	"sigs.k8s.io/knftables"

	"weft.dev/weft/internal/nft"
	"weft.dev/weft/internal/nft/nfnetlink"
	"weft.dev/weft/internal/nft/nftcli"
	"weft.dev/weft/internal/reconcile"
)

// Options of an Engine.
type Options struct {
	// Netns is the path of the network namespace whose tables are programmed; "" is that of the caller of NewEngine.
	Netns string
	// Tables are Weft's tables, managed from the start: a table that exists and is not desired is read, and so found. Tables named in commits
	// are managed as well.
	Tables []nft.Table
	// Unmanaged are chains within Tables whose rules another program or the administrator writes. They are created empty when they are
	// desired; from then on nothing in them is read, changed or removed, and a ChainRules item for one is rejected. Chains, sets and maps
	// whose name is that of the chain with a hyphen appended ("<chain>-...") are left alone as well. They are removed only with their table.
	// The zero value: the engine manages everything in Tables.
	Unmanaged []nft.Chain
	// Apart are tables of Weft that other engines manage. A survey does not examine them, and no rule is added to their chains.
	Apart []nft.Table
	// Foreign also reads the rules with Mark in the base chains of other tables; a commit of a ForeignJump turns it on.
	Foreign bool
}

// Engine programs nftables with nft(8). The methods of reconcile.Engine are not called concurrently; Monitor runs concurrently with them.
type Engine struct {
	namespace nftcli.Namespace
	foreign   atomic.Bool
	shared    listings
	own       ownChanges
	// unmanaged are the keys of Options.Unmanaged, apart those of Options.Apart. They do not change.
	unmanaged nft.Unmanaged
	apart     map[tableKey]bool

	mutex  sync.Mutex
	tables map[tableKey]bool // managed

	// known is the kernel's state after the last Read or Commit; nil before the first.
	known   map[nft.Key]nft.Item
	records map[tableKey]map[string]record
}

// tableKey names a table.
type tableKey struct {
	family nft.Family
	name   string
}

// tableOf returns the table of an item.
func tableOf(key nft.Key) tableKey { return tableKey{key.Family, key.Table} }

// object returns the key of an object in the table.
func (t tableKey) object(kind nft.Kind, name string) nft.Key {
	return nft.Key{Family: t.family, Table: t.name, Kind: kind, Name: name}
}

var _ reconcile.Engine[nft.Key, nft.Item] = (*Engine)(nil)

// NewEngine returns an engine. It fails if there is no nft, or no such namespace. If nft does not work, each Read and Commit fails.
func NewEngine(options Options) (*Engine, error) {
	e := &Engine{
		tables: map[tableKey]bool{}, records: map[tableKey]map[string]record{}, unmanaged: nft.NewUnmanaged(options.Unmanaged),
		apart: map[tableKey]bool{},
	}
	e.foreign.Store(options.Foreign)
	for _, table := range options.Tables {
		e.tables[tableOf(table.Key())] = true
	}
	for _, table := range options.Apart {
		e.apart[tableOf(table.Key())] = true
	}
	var err error
	if e.namespace, err = nftcli.Open(options.Netns); err != nil {
		return nil, err
	}
	return e, nil
}

// builder builds the transactions of all engines. knftables runs nft three times to make it, and the kernel takes tens of milliseconds to
// abort each of the two transactions that are only checked. nft and the kernel are the same for all namespaces.
//
//nolint:gochecknoglobals // what nft and the kernel support does not change
var builder atomic.Pointer[knftables.Interface]

// transaction returns an empty transaction. The process's first call makes the builder.
func (e *Engine) transaction() (*knftables.Transaction, error) {
	if made := builder.Load(); made != nil {
		return (*made).NewTransaction(), nil
	}
	var made knftables.Interface
	err := e.namespace.Inside(func() (err error) {
		made, err = knftables.New("", "", knftables.EmulateDestroy)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("nft engine: %w", err)
	}
	builder.Store(&made)
	return made.NewTransaction(), nil
}

// Close releases the engine's resources. What is programmed stays.
func (e *Engine) Close() { e.namespace.Close() }

func (e *Engine) tablesInCare() []tableKey {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	return slices.SortedFunc(maps.Keys(e.tables), func(a, b tableKey) int {
		return strings.Compare(string(a.family)+" "+a.name, string(b.family)+" "+b.name)
	})
}

func (e *Engine) take(key tableKey) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	e.tables[key] = true
}

func (e *Engine) cares(key tableKey) bool {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	return e.tables[key]
}

// Read implements reconcile.Engine. It reads everything concurrently: some listings are processes, and a start waits for all of them. If none
// of the tables exists, a commit will follow, and Read also makes the builder. A restart that finds its tables commits nothing, and does
// not wait for the builder.
func (e *Engine) Read(ctx context.Context) (map[nft.Key]nft.Item, error) {
	var all []nfnetlink.Table
	err := e.namespace.Inside(func() (err error) {
		all, err = nfnetlink.Tables()
		return err
	})
	if err != nil {
		return nil, err
	}
	dormant := map[tableKey]bool{} // for each table that exists
	for _, table := range all {
		dormant[tableKey{familyOf(table.Family), table.Name}] = table.Dormant
	}
	tables := slices.DeleteFunc(e.tablesInCare(), func(key tableKey) bool { _, exists := dormant[key]; return !exists })
	listings := make([]*listing, len(tables))
	foreign := map[nft.Key]nft.Item{}
	group, groupCtx := errgroup.WithContext(ctx)
	if len(tables) == 0 {
		group.Go(func() error { _, err := e.transaction(); return err })
	}
	for i, table := range tables {
		group.Go(func() error {
			found, err := e.list(groupCtx, table)
			if errors.Is(err, nft.ErrMissing) {
				return nil
			}
			if err != nil {
				return fmt.Errorf("reading table %s %s: %w", table.family, table.name, err)
			}
			found.dormant = dormant[table]
			listings[i] = found
			return nil
		})
	}
	if e.foreign.Load() {
		group.Go(func() error {
			if err := e.readForeign(groupCtx, foreign); err != nil {
				return fmt.Errorf("reading foreign chains: %w", err)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	state := foreign
	records := map[tableKey]map[string]record{}
	for i, table := range tables {
		if listings[i] != nil {
			records[table] = listings[i].records()
			maps.Copy(state, e.unmanaged.LeaveOut(listings[i].items()))
		}
	}
	e.known, e.records = maps.Clone(state), records
	return state, nil
}

// list reads a table by netlink. It runs nft only for objects that it cannot decode, and to show rules that another program has changed.
func (e *Engine) list(ctx context.Context, table tableKey) (*listing, error) {
	found := &listing{table: table}
	err := e.namespace.Inside(func() error { return found.read() })
	if errors.Is(err, nfnetlink.ErrUndecoded) {
		var structured []byte
		if structured, err = e.ask(ctx, "-j", "list", "table", string(table.family), table.name); err == nil {
			found.objects, err = parseObjects(structured)
		}
	}
	if err != nil || !found.altered() {
		return found, err
	}
	text, err := e.ask(ctx, "-s", "-t", "-n", "list", "table", string(table.family), table.name)
	found.blocks = parseBlocks(string(text))
	return found, err
}
