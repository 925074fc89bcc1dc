package nft

import (
	"context"
	"errors"

	"weft.dev/weft/internal/reconcile"
)

// Options of an Engine.
type Options struct {
	// Netns is the path of the network namespace whose tables are programmed; "" is the process's own.
	Netns string
	// Tables are Weft's tables, in care from the start: one that exists and is not desired is read, and thereby found.
	// Tables named in commits are in care as well.
	Tables []Table
	// Foreign also reads the rules that carry Mark in the base chains of other tables.
	Foreign bool
}

// Engine programs nftables. The methods of reconcile.Engine are not called concurrently; Monitor runs beside them.
type Engine struct{}

var (
	_ reconcile.Engine[Key, Item] = (*Engine)(nil)
	_ reconcile.Engine[Key, Item] = (*Fake)(nil)
)

// Drift says which table was changed by another process. The zero value with All set says that any may have been.
type Drift struct {
	// All says that events were lost, or that watching has begun.
	All    bool
	Family Family
	Table  string
}

// NewEngine returns an engine. It fails when there is no nft.
func NewEngine(options Options) (*Engine, error) { return &Engine{}, nil }

// Read implements reconcile.Engine.
func (e *Engine) Read(ctx context.Context) (map[Key]Item, error) { return nil, errors.ErrUnsupported }

// Commit implements reconcile.Engine.
func (e *Engine) Commit(ctx context.Context, change reconcile.Change[Key, Item]) error {
	return errors.ErrUnsupported
}

// Monitor reports the tables in care, and foreign ones when those are read, that other processes change, until ctx ends;
// then the channel is closed. The first value, with All set, says that watching has begun. When events
// were lost it resubscribes and reports All. Slow readers lose detail (All), never a change.
func (e *Engine) Monitor(ctx context.Context) (<-chan Drift, error) {
	return nil, errors.ErrUnsupported
}

// ForeignDrop is a place in another table that would, or might, drop traffic of given interfaces.
type ForeignDrop struct {
	Family   Family
	Table    string
	Chain    string
	Hook     Hook
	Priority int
	// Rule is what drops, in the words of nft's listing, or "policy drop".
	Rule string
	// Handle of the rule; 0 for a policy.
	Handle int
	// In is the chain the rule stands in, when Chain reaches it by a jump; else it is Chain.
	In string
	// Conditional says that the rule has further conditions, so that it may drop some packets only.
	Conditional bool
	// Covered says that Weft's own accepting rule stands above it for the interface.
	Covered bool
}

// ForeignDrops looks through the base chains at the forward and input hooks of tables that are not Weft's for what
// would drop traffic that comes in or goes out by one of the devices. Rules of legacy iptables (not iptables-nft)
// are not visible to nft and not in the answer.
func (e *Engine) ForeignDrops(ctx context.Context, devices ...string) ([]ForeignDrop, error) {
	return nil, errors.ErrUnsupported
}

// Jumps returns the items that, committed, let traffic of the devices pass the chains of the drops: one per chain, device and
// direction.
func Jumps(drops []ForeignDrop, owner string, devices ...string) []*ForeignJump { return nil }

// Fake is an Engine in memory.
type Fake struct{}

// NewFake returns an empty Fake.
func NewFake() *Fake { return &Fake{} }

// Read implements reconcile.Engine.
func (f *Fake) Read(ctx context.Context) (map[Key]Item, error) { return nil, errors.ErrUnsupported }

// Commit implements reconcile.Engine.
func (f *Fake) Commit(ctx context.Context, change reconcile.Change[Key, Item]) error {
	return errors.ErrUnsupported
}
