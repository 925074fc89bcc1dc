package engines

import (
	"context"

	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/openflow/bridge"
	"weft.dev/weft/internal/ovsdb"
	"weft.dev/weft/internal/reconcile"
)

// readOnly returns an engine for a loop: the engine itself, or in a dry run one that reads but does not write.
func readOnly[K comparable, V any](dry bool, engine reconcile.Engine[K, V]) reconcile.Engine[K, V] {
	if dry {
		return reconcile.DryRun(engine)
	}
	return engine
}

// flowEngine returns the engine of the flow loop. In a dry run on a node without a bridge, there is nothing to connect to, and there are no
// flows.
func (s *Switch) flowEngine(ctx context.Context, bridge string, engine *bridge.Engine) (reconcile.Engine[openflow.Key, openflow.Entry], error) {
	if !s.options.Dry {
		return engine, nil
	}
	rows, err := s.Database.Read(ctx)
	if err != nil {
		return nil, err
	}
	if _, there := rows[ovsdb.BridgeKey(bridge)]; !there {
		return noFlows{}, nil
	}
	return reconcile.DryRun[openflow.Key, openflow.Entry](engine), nil
}

// noFlows is the engine of a switch without a bridge.
type noFlows struct{}

// Read implements reconcile.Engine.
func (noFlows) Read(context.Context) (map[openflow.Key]openflow.Entry, error) {
	return map[openflow.Key]openflow.Entry{}, nil
}

// Commit implements reconcile.Engine.
func (noFlows) Commit(context.Context, bridge.Change) error { return nil }
