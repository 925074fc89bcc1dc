// Package ovsport puts pods' interfaces on an integration bridge that another program programs: ovn-controller, or an agent of OpenStack.
// It writes one row for each interface, which names the logical port (external_ids:iface-id). It then waits until the other program
// reports that the port's flows are installed (external_ids:ovn-installed, ovn-controller(8)).
//
// A mark in external_ids identifies the package's own rows. It neither changes nor removes other rows.
package ovsport

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"

	"github.com/ovn-kubernetes/libovsdb/model"
	"github.com/ovn-kubernetes/libovsdb/ovsdb"

	"weft.dev/weft/internal/ovsdb/session"
)

// Netdev is the type of the userspace datapath (Bridge.datapath_type).
const Netdev = "netdev"

// Keys in external_ids of Port (the mark) and Interface.
const (
	// OwnerKey names the object that a row is for. The key differs from that of package ovsdb, whose engine would otherwise remove the rows.
	OwnerKey = "weft.dev/attachment"
	// IfaceIDKey names the logical port.
	IfaceIDKey = "iface-id"
	// InstalledKey is "true" once ovn-controller has installed the port's flows.
	InstalledKey = "ovn-installed"
)

var (
	// ErrForeign is wrapped if another program has a row with the device's name.
	ErrForeign = errors.New("the switch has a port of this name that is not Weft's; remove it")
	// ErrNoBridge is wrapped when the integration bridge does not exist.
	ErrNoBridge = errors.New("the integration bridge does not exist; does its controller run on this node?")
	// ErrNotInstalled is wrapped if the flows of a port were not reported in time.
	ErrNotInstalled = errors.New("the flows of the logical port are not installed")
)

// Config describes the switch and the bridge.
type Config struct {
	// Endpoint is the switch's database: unix:PATH.
	Endpoint string
	// Bridge is the integration bridge, such as br-int.
	Bridge string
	// Logger logs when the connection is lost and when it is back. Nil: no logs.
	Logger *slog.Logger
	// Changed is called when ports of the switch have changed, and for each new connection. It must not block. Nil: no calls.
	Changed func()
}

// Port is an interface on the bridge.
type Port struct {
	// Device is the host veth of the pod's interface.
	Device string
	// IfaceID is the name of the logical port.
	IfaceID string
	// Owner names the object that the port is for.
	Owner string
}

type bridgeRow struct {
	UUID         string   `ovsdb:"_uuid"`
	Name         string   `ovsdb:"name"`
	DatapathType string   `ovsdb:"datapath_type"`
	Ports        []string `ovsdb:"ports"`
}

type portRow struct {
	UUID        string            `ovsdb:"_uuid"`
	Name        string            `ovsdb:"name"`
	Interfaces  []string          `ovsdb:"interfaces"`
	ExternalIDs map[string]string `ovsdb:"external_ids"`
}

type interfaceRow struct {
	UUID        string            `ovsdb:"_uuid"`
	Name        string            `ovsdb:"name"`
	Error       *string           `ovsdb:"error"`
	ExternalIDs map[string]string `ovsdb:"external_ids"`
}

const (
	database       = "Open_vSwitch"
	bridgeTable    = "Bridge"
	portTable      = "Port"
	interfaceTable = "Interface"
)

// Ports manages the interfaces on one integration bridge. It is safe for concurrent use.
type Ports struct {
	config Config
	keeper *session.Keeper
}

// Open returns Ports that connect, and reconnect whenever the connection is lost. The caller must Close them.
func Open(ctx context.Context, config Config) (*Ports, error) {
	if config.Changed == nil {
		config.Changed = func() {}
	}
	keeper, err := session.Keep(ctx, session.Config{
		Changed:   func(string) { config.Changed() },
		Connected: func(bool) { config.Changed() },
		Database:  database, Endpoints: []string{config.Endpoint}, Logger: config.Logger,
		Tables: map[string]model.Model{bridgeTable: &bridgeRow{}, portTable: &portRow{}, interfaceTable: &interfaceRow{}},
	})
	if err != nil {
		return nil, fmt.Errorf("database of the switch: %w", err)
	}
	return &Ports{config, keeper}, nil
}

// Close ends the connection. It changes nothing on the switch.
func (p *Ports) Close() { p.keeper.Close() }

// Attach puts the interface on the bridge, and returns once its flows are installed. It may be called again with the same port. If ctx
// ends before, the row remains, and the error wraps ErrNotInstalled.
func (p *Ports) Attach(ctx context.Context, port Port) error {
	err := p.keeper.Do(ctx, func(s *session.Session) error {
		if err := s.Sync(ctx); err != nil {
			return err
		}
		ops, err := p.attach(s, port)
		if err != nil {
			return err
		}
		if err := transact(ctx, s, ops); err != nil {
			return err
		}
		return installed(ctx, s, port)
	})
	if err != nil {
		return fmt.Errorf("port %s of %s for logical port %q: %w", port.Device, p.config.Bridge, port.IfaceID, err)
	}
	return nil
}

// Put writes the rows of the interfaces, and does not wait for their flows. If one row is another program's, the others are still
// written.
func (p *Ports) Put(ctx context.Context, ports ...Port) error {
	var refused []error
	err := p.keeper.Do(ctx, func(s *session.Session) error {
		refused = nil
		if err := s.Sync(ctx); err != nil {
			return err
		}
		for _, port := range ports {
			ops, err := p.attach(s, port)
			if err == nil {
				err = transact(ctx, s, ops)
			}
			if errors.Is(err, session.ErrLost) || errors.Is(err, ErrNoBridge) {
				return err
			}
			if err != nil {
				refused = append(refused, fmt.Errorf("port %s for logical port %q: %w", port.Device, port.IfaceID, err))
			}
		}
		return nil
	})
	if err = errors.Join(append(refused, err)...); err != nil {
		return fmt.Errorf("ports of %s: %w", p.config.Bridge, err)
	}
	return nil
}

// Datapath returns the type of the bridge's datapath.
func (p *Ports) Datapath(ctx context.Context) (string, error) {
	var datapath string
	err := p.keeper.Do(ctx, func(s *session.Session) error {
		bridge, err := p.bridge(s)
		if err == nil {
			datapath = bridge.DatapathType
		}
		return err
	})
	if err != nil {
		return "", fmt.Errorf("datapath of %s: %w", p.config.Bridge, err)
	}
	return datapath, nil
}

// attach returns the operations that make or correct the row; none if it is correct.
func (p *Ports) attach(s *session.Session, port Port) ([]ovsdb.Operation, error) {
	bridge, err := p.bridge(s)
	if err != nil {
		return nil, err
	}
	row, iface := find(s, port.Device)
	if row == nil {
		return create(bridge, port), nil
	}
	switch {
	case row.ExternalIDs[OwnerKey] == "" || !slices.Contains(bridge.Ports, row.UUID):
		return nil, ErrForeign
	case iface == nil:
		return nil, fmt.Errorf("%w: it has no interface", ErrForeign)
	}
	var ops []ovsdb.Operation
	if row.ExternalIDs[OwnerKey] != port.Owner {
		ops = append(ops, setIDs(portTable, row.UUID, map[string]string{OwnerKey: port.Owner}))
	}
	if iface.ExternalIDs[IfaceIDKey] != port.IfaceID {
		// ovn-installed is about the former logical port.
		op := setIDs(interfaceTable, iface.UUID, map[string]string{IfaceIDKey: port.IfaceID})
		op.Mutations[0].Value = ovsdb.OvsSet{GoSet: []any{IfaceIDKey, InstalledKey}}
		ops = append(ops, op)
	}
	return ops, nil
}

func (p *Ports) bridge(s *session.Session) (*bridgeRow, error) {
	for _, row := range session.Rows[bridgeRow](s, bridgeTable) {
		if row.Name == p.config.Bridge {
			return row, nil
		}
	}
	return nil, fmt.Errorf("%w: %s", ErrNoBridge, p.config.Bridge)
}

// find returns the rows of a device; nil if there are none.
func find(s *session.Session, device string) (*portRow, *interfaceRow) {
	for _, row := range session.Rows[portRow](s, portTable) {
		if row.Name != device {
			continue
		}
		interfaces := session.Rows[interfaceRow](s, interfaceTable)
		for _, uuid := range row.Interfaces {
			if iface := interfaces[uuid]; iface != nil {
				return row, iface
			}
		}
		return row, nil
	}
	return nil, nil
}

func create(bridge *bridgeRow, port Port) []ovsdb.Operation {
	dict := func(key, value string) ovsdb.OvsMap { return ovsdb.OvsMap{GoMap: map[any]any{key: value}} }
	named := func(name string) ovsdb.OvsSet { return ovsdb.OvsSet{GoSet: []any{ovsdb.UUID{GoUUID: name}}} }
	return []ovsdb.Operation{
		{
			Op: ovsdb.OperationInsert, Table: interfaceTable, UUIDName: "iface",
			Row: ovsdb.Row{"name": port.Device, "external_ids": dict(IfaceIDKey, port.IfaceID)},
		},
		{
			Op: ovsdb.OperationInsert, Table: portTable, UUIDName: "port",
			Row: ovsdb.Row{"name": port.Device, "interfaces": named("iface"), "external_ids": dict(OwnerKey, port.Owner)},
		},
		{
			Op: ovsdb.OperationMutate, Table: bridgeTable, Where: byUUID(bridge.UUID),
			Mutations: []ovsdb.Mutation{{Column: "ports", Mutator: ovsdb.MutateOperationInsert, Value: named("port")}},
		},
	}
}

func byUUID(uuid string) []ovsdb.Condition {
	return []ovsdb.Condition{{Column: "_uuid", Function: ovsdb.ConditionEqual, Value: ovsdb.UUID{GoUUID: uuid}}}
}

// setIDs sets keys of external_ids and keeps the others.
func setIDs(table, uuid string, ids map[string]string) ovsdb.Operation {
	keys, values := ovsdb.OvsSet{GoSet: []any{}}, ovsdb.OvsMap{GoMap: map[any]any{}}
	for key, value := range ids {
		keys.GoSet = append(keys.GoSet, key)
		values.GoMap[key] = value
	}
	return ovsdb.Operation{
		Op: ovsdb.OperationMutate, Table: table, Where: byUUID(uuid),
		Mutations: []ovsdb.Mutation{
			{Column: "external_ids", Mutator: ovsdb.MutateOperationDelete, Value: keys},
			{Column: "external_ids", Mutator: ovsdb.MutateOperationInsert, Value: values},
		},
	}
}

// transact writes the operations, if there are any, and triggers ovs-vswitchd to apply them.
func transact(ctx context.Context, s *session.Session, ops []ovsdb.Operation) error {
	if len(ops) == 0 {
		return nil
	}
	ops = append(ops, ovsdb.Operation{
		Op: ovsdb.OperationMutate, Table: database, // the table has one row
		Where:     []ovsdb.Condition{{Column: "next_cfg", Function: ovsdb.ConditionGreaterThanOrEqual, Value: 0}},
		Mutations: []ovsdb.Mutation{{Column: "next_cfg", Mutator: ovsdb.MutateOperationAdd, Value: 1}},
	})
	results, err := s.Transact(ctx, ops...)
	if err != nil {
		return err //nolint:wrapcheck // the callers say which port
	}
	return session.Check(ops, results) //nolint:wrapcheck // the callers say which port
}

// installed waits until the port's flows are installed.
func installed(ctx context.Context, s *session.Session, port Port) error {
	var failure error
	err := s.Await(ctx, func() bool {
		_, iface := find(s, port.Device)
		if iface == nil {
			return false
		}
		if iface.Error != nil && *iface.Error != "" {
			failure = fmt.Errorf("%w: the switch says: %s", ErrNotInstalled, *iface.Error)
		} else {
			failure = nil
		}
		return iface.ExternalIDs[IfaceIDKey] == port.IfaceID && iface.ExternalIDs[InstalledKey] == "true"
	})
	switch {
	case err == nil:
		return nil
	case errors.Is(err, session.ErrLost):
		return err //nolint:wrapcheck // the keeper calls again
	case failure != nil:
		return failure
	default:
		return fmt.Errorf("%w: no chassis reports it (%w)", ErrNotInstalled, err)
	}
}

// Detach removes the interfaces from the bridge in one transaction. It skips those that do not exist or are not Weft's.
func (p *Ports) Detach(ctx context.Context, devices ...string) error {
	err := p.keeper.Do(ctx, func(s *session.Session) error {
		if err := s.Sync(ctx); err != nil {
			return err
		}
		bridge, err := p.bridge(s)
		if errors.Is(err, ErrNoBridge) {
			return nil
		}
		gone := ovsdb.OvsSet{GoSet: []any{}}
		for _, device := range devices {
			row, _ := find(s, device)
			if row != nil && row.ExternalIDs[OwnerKey] != "" && slices.Contains(bridge.Ports, row.UUID) {
				gone.GoSet = append(gone.GoSet, ovsdb.UUID{GoUUID: row.UUID})
			}
		}
		if len(gone.GoSet) == 0 {
			return nil
		}
		return transact(ctx, s, []ovsdb.Operation{{ // the database deletes ports and interfaces without a bridge
			Op: ovsdb.OperationMutate, Table: bridgeTable, Where: byUUID(bridge.UUID),
			Mutations: []ovsdb.Mutation{{Column: "ports", Mutator: ovsdb.MutateOperationDelete, Value: gone}},
		}})
	})
	if err != nil {
		return fmt.Errorf("remove %d ports from %s: %w", len(devices), p.config.Bridge, err)
	}
	return nil
}

// List returns Weft's interfaces on the bridge by their devices.
func (p *Ports) List(ctx context.Context) (map[string]Port, error) {
	ports := map[string]Port{}
	err := p.keeper.Do(ctx, func(s *session.Session) error {
		if err := s.Sync(ctx); err != nil {
			return err
		}
		maps.DeleteFunc(ports, func(string, Port) bool { return true })
		bridge, err := p.bridge(s)
		if err != nil {
			return err
		}
		for uuid, row := range session.Rows[portRow](s, portTable) {
			if row.ExternalIDs[OwnerKey] == "" || !slices.Contains(bridge.Ports, uuid) {
				continue
			}
			port := Port{Device: row.Name, Owner: row.ExternalIDs[OwnerKey]}
			if _, iface := find(s, row.Name); iface != nil {
				port.IfaceID = iface.ExternalIDs[IfaceIDKey]
			}
			ports[row.Name] = port
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list the ports of %s: %w", p.config.Bridge, err)
	}
	return ports, nil
}
