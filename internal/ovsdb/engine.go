package ovsdb

import (
	"context"
	"errors"

	"weft.dev/weft/internal/reconcile"
)

// Change is a change of an Open vSwitch database.
type Change = reconcile.Change[Key, Row]

// Engine programs one switch.
type Engine struct{}

var _ reconcile.Engine[Key, Row] = (*Engine)(nil)

// Open connects to the database.
func Open(ctx context.Context, config Config) (*Engine, error) {
	return nil, errors.ErrUnsupported
}

// Close ends it.
func (e *Engine) Close() {}

// Read implements reconcile.Engine.
func (e *Engine) Read(ctx context.Context) (map[Key]Row, error) { return nil, errors.ErrUnsupported }

// Commit implements reconcile.Engine.
func (e *Engine) Commit(ctx context.Context, change Change) error { return errors.ErrUnsupported }

// OFPort returns the OpenFlow port number of a port or of a bridge's local port.
func (e *Engine) OFPort(ctx context.Context, name string) (uint32, error) {
	return 0, errors.ErrUnsupported
}

// Datapath says which datapaths work here.
func (e *Engine) Datapath(ctx context.Context) (Datapath, error) {
	return Datapath{}, errors.ErrUnsupported
}

// Events returns the engine's events.
func (e *Engine) Events() <-chan Event { return nil }
