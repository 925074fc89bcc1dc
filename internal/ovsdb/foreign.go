package ovsdb

import (
	"context"
	"fmt"
	"slices"

	"weft.dev/weft/internal/ovsdb/confdb"
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
		v, err := confdb.Current(ctx, s, e.config.claim())
		if err != nil || v.Root == nil {
			return err
		}
		found = Foreign{Hostname: v.Root.ExternalIDs["hostname"]}
		if b, there := v.Bridges[bridge]; there {
			found.Exists, found.Datapath = true, b.Row.DatapathType
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

const (
	// installedID is set to "true" by ovn-controller in an Interface once the flows of its logical port are in effect (ovn-controller(8)).
	installedID = "ovn-installed"
	// deadTag is the VLAN of ports that Neutron's agent has not bound (DEAD_VLAN_TAG of neutron.plugins.ml2.drivers.openvswitch).
	deadTag = 4095
)

// AwaitBound waits until the program that controls br-int has bound at least one of the ports, or has installed the flows of one of the
// others, and returns all of which this is true. ovn-controller marks an Interface whose flows are installed; Neutron's agent tags a bound
// Port before that (_bind_devices of ovs_neutron_agent.py). Both are deleted with the row: a port added again has to be bound again.
func (e *Engine) AwaitBound(ctx context.Context, bind, install []string) ([]string, error) {
	var bound []string
	err := e.keeper.Do(ctx, func(s *session.Session) error {
		if err := s.Sync(ctx); err != nil {
			return err
		}
		return s.Await(ctx, func() bool {
			bound = boundOf(session.Rows[confdb.Port](s, confdb.TablePort), session.Rows[confdb.Interface](s, confdb.TableInterface), bind, install)
			return len(bound) > 0
		})
	})
	if err != nil {
		return nil, fmt.Errorf("wait for ports to be bound: %w", err)
	}
	return bound, nil
}

// boundOf returns those of the ports to bind that are bound, and those to install whose flows are installed, sorted.
func boundOf(rows map[string]*confdb.Port, interfaces map[string]*confdb.Interface, bind, install []string) []string {
	var bound []string
	for _, row := range rows {
		if row.Tag != nil && *row.Tag != deadTag && slices.Contains(bind, row.Name) {
			bound = append(bound, row.Name)
		}
	}
	for _, row := range interfaces {
		if row.ExternalIDs[installedID] == "true" && (slices.Contains(bind, row.Name) || slices.Contains(install, row.Name)) {
			bound = append(bound, row.Name)
		}
	}
	slices.Sort(bound)
	return slices.Compact(bound)
}
