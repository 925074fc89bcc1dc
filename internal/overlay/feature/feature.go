// Package feature is the interface between the overlay and its features: egress firewalls, egress IPs, projects, Services. A feature keeps
// its own state under its own lock, and compiles flows of its own and parts of pods' flows. The overlay hands them over together with what
// else the pods' flows depend on.
package feature

import (
	"context"
	"iter"

	"weft.dev/weft/internal/attach"
	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/overlay/pipeline"
	"weft.dev/weft/internal/reconcile"
)

// Flows are fragments of the switch's flows, by owner; empty for withdrawn ones.
type Flows = map[reconcile.Owner]map[openflow.Key]openflow.Entry

// Network is the overlay as its features change it.
type Network interface {
	// Begin begins to hand over: until end is called, the network's View stays the same, and nothing else of Views and features is handed
	// over. A feature calls end before it waits for what it has handed over.
	Begin() (end func())
	// View returns what features compile from, without the attachments; false before the network is programmed.
	View() (v View, on bool)
	// Change calls compile, and hands over the flows that it returns together with the flows of the attachments that it returns, in one
	// change and without waiting. No attachment is opened or closed meanwhile, and the flows of ADDs under way are compiled again. It returns
	// the owners whose flows it handed over. A feature changes what pods' flows depend on before Change or in compile, never later: the flows
	// of ADDs under way are compiled again only after compile has returned. Before the network is programmed it returns none, and does not
	// call compile.
	Change(compile func(v View) (Flows, []attach.Record)) []reconcile.Owner
	// Settled waits until the switch has tried the flows of these owners, and returns why some of them are not in effect.
	Settled(ctx context.Context, owners iter.Seq[reconcile.Owner]) error
	// Purge purges the datapath as due, and as earlier changes require.
	Purge(ctx context.Context, due Due) error
}

// View is what a feature compiles from.
type View struct {
	// Config compiles the flows.
	Config *pipeline.Config
	// Uplink is the node's own interface.
	Uplink string
	// Live are the attachments whose ports are open or being opened. Read-only.
	Live map[attach.Key]attach.Record
}

// Due says when the datapath is purged.
type Due int

const (
	// Never means that the change needs no purge.
	Never Due = iota
	// Soon means after Options.PurgeRest at the latest.
	Soon
	// Now means before Purge returns.
	Now
)
