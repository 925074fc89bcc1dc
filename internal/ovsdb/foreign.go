package ovsdb

import (
	"context"
	"fmt"

	"weft.dev/weft/internal/ovsdb/session"
)

// Foreign is a bridge of another program, and what the switch is to that program.
type Foreign struct {
	// Exists says that there is a bridge of the name.
	Exists bool
	// Datapath is the bridge's datapath type, DatapathSystem or DatapathNetdev.
	Datapath string
	// Hostname is external_ids:hostname of the switch, by which OVN and Neutron know the node. Empty: nobody has set it.
	Hostname string
}

// Foreign returns what the database says of a bridge that is not Weft's. Nothing of it is changed.
func (e *Engine) Foreign(ctx context.Context, bridge string) (Foreign, error) {
	var found Foreign
	err := e.keeper.Do(ctx, func(s *session.Session) error {
		v, err := currentView(ctx, s, e.config.claim())
		if err != nil || v.root == nil {
			return err
		}
		found = Foreign{Hostname: v.root.ExternalIDs["hostname"]}
		if b, there := v.bridges[bridge]; there {
			found.Exists, found.Datapath = true, b.row.DatapathType
			if found.Datapath == "" {
				found.Datapath = DatapathSystem
			}
		}
		return nil
	})
	if err != nil {
		return Foreign{}, fmt.Errorf("look at bridge %s: %w", bridge, err)
	}
	return found, nil
}
