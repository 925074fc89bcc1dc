package ovsdb

import (
	"context"
	"fmt"

	"weft.dev/weft/internal/ovsdb/session"
)

// Foreign is a bridge of another program, with the settings of the switch that this program uses.
type Foreign struct {
	// Exists reports whether there is a bridge of the name.
	Exists bool
	// Datapath is the bridge's datapath type, DatapathSystem or DatapathNetdev.
	Datapath string
	// Hostname is external_ids:hostname of the switch, which identifies the node for OVN and Neutron. Empty: not set.
	Hostname string
}

// Foreign returns a bridge that is not Weft's. It changes nothing.
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
