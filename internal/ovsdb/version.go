package ovsdb

import (
	"context"
	"fmt"

	"weft.dev/weft/internal/ovsdb/confdb"
	"weft.dev/weft/internal/ovsdb/session"
)

// Version returns the release of the running Open vSwitch, as ovs-vswitchd or its start script wrote it to the database; "" if it is not
// set.
func (e *Engine) Version(ctx context.Context) (string, error) {
	version := ""
	err := e.keeper.Do(ctx, func(s *session.Session) error {
		v, err := confdb.Current(ctx, s, e.config.claim())
		if err == nil && v.Root != nil && v.Root.OVSVersion != nil {
			version = *v.Root.OVSVersion
		}
		return err
	})
	if err != nil {
		return "", fmt.Errorf("release of Open vSwitch: %w", err)
	}
	return version, nil
}
