package ovsdb

import (
	"context"
	"errors"
	"fmt"

	"weft.dev/weft/internal/ovsdb/session"
)

// tablesOf copies the maps of rows. The rows belong to the session, which replaces them and never writes into them.
func tablesOf(s *session.Session) tables {
	return tables{
		root:       session.Rows[rootRow](s, tableRoot),
		bridges:    session.Rows[bridgeRow](s, tableBridge),
		ports:      session.Rows[portRow](s, tablePort),
		interfaces: session.Rows[interfaceRow](s, tableInterface),
	}
}

// rootOf returns the database's one Open_vSwitch row, nil if there is none.
func rootOf(s *session.Session) *rootRow {
	for _, row := range session.Rows[rootRow](s, tableRoot) {
		return row
	}
	return nil
}

// maxTorn is how often a view is taken again because it was taken in the middle of an update.
const maxTorn = 20

// latestView returns a view of the updates received so far.
func latestView(ctx context.Context, s *session.Session, own claim) (*view, error) {
	if v := newView(tablesOf(s), own); !v.dangling {
		return v, nil
	}
	return currentView(ctx, s, own)
}

// currentView returns a current view of the database.
func currentView(ctx context.Context, s *session.Session, own claim) (*view, error) {
	for try := 0; ; try++ {
		if err := s.Sync(ctx); err != nil {
			return nil, err
		}
		v := newView(tablesOf(s), own)
		if !v.dangling || try == maxTorn {
			return v, nil
		}
	}
}

// applied waits until ovs-vswitchd has applied the configuration of that number. A later view shows the outcome: it is in the same update
// as the number.
func applied(ctx context.Context, s *session.Session, cfg int) error {
	err := s.Await(ctx, func() bool {
		root := rootOf(s)
		return root != nil && root.CurCfg >= cfg
	})
	if err != nil && !errors.Is(err, session.ErrLost) {
		return fmt.Errorf("%w (%w)", ErrNotApplied, err)
	}
	return err
}
