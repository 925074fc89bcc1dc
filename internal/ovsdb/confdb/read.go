package confdb

import (
	"context"
	"errors"
	"fmt"

	"weft.dev/weft/internal/ovsdb/session"
	"weft.dev/weft/internal/reconcile"
)

// ErrNotApplied says that the database has a change, but ovs-vswitchd has not applied it within the caller's time limit: ovs-vswitchd is
// not running, or busy.
var ErrNotApplied = fmt.Errorf("%w: not applied by ovs-vswitchd: is it running?", reconcile.ErrUnavailable)

// tablesOf copies the maps of rows. The rows belong to the session, which replaces them and never writes into them.
func tablesOf(s *session.Session) Tables {
	return Tables{
		Root:       session.Rows[Root](s, TableRoot),
		Bridges:    session.Rows[Bridge](s, TableBridge),
		Ports:      session.Rows[Port](s, TablePort),
		Interfaces: session.Rows[Interface](s, TableInterface),
	}
}

// RootOf returns the database's one Open_vSwitch row, nil if there is none.
func RootOf(s *session.Session) *Root {
	for _, row := range session.Rows[Root](s, TableRoot) {
		return row
	}
	return nil
}

// maxTorn is how often a view is taken again because it was taken in the middle of an update.
const maxTorn = 20

// Latest returns a view of the updates received so far.
func Latest(ctx context.Context, s *session.Session, own Claim) (*View, error) {
	if v := NewView(tablesOf(s), own); !v.dangling {
		return v, nil
	}
	return Current(ctx, s, own)
}

// Current returns a current view of the database.
func Current(ctx context.Context, s *session.Session, own Claim) (*View, error) {
	for try := 0; ; try++ {
		if err := s.Sync(ctx); err != nil {
			return nil, err
		}
		v := NewView(tablesOf(s), own)
		if !v.dangling || try == maxTorn {
			return v, nil
		}
	}
}

// Applied waits until ovs-vswitchd has applied the configuration of that number. A later view shows the outcome: it is in the same update
// as the number.
func Applied(ctx context.Context, s *session.Session, cfg int) error {
	err := s.Await(ctx, func() bool {
		root := RootOf(s)
		return root != nil && root.CurCfg >= cfg
	})
	if err != nil && !errors.Is(err, session.ErrLost) {
		return fmt.Errorf("%w (%w)", ErrNotApplied, err)
	}
	return err
}
