// Package ovsdb is the engine for an Open vSwitch configuration database: bridges, ports and their interfaces.
//
// Desired state is plain Go values ([Bridge], [Port]) under a [Key]. An [Engine] reads Weft's rows from a monitored copy of the database.
// It commits a change as one OVSDB transaction, however many ports are in it: ovs-vswitchd reconfigures itself once per transaction, so a
// port that is added with others costs a fraction of a port that is added alone. Commit returns when ovs-vswitchd has applied the
// transaction (Open_vSwitch.cur_cfg has reached the next_cfg of the transaction), and has then checked every port against the switch's
// report.
//
// These rows belong to Weft: the bridges named in [Config.Bridges], everything on them, and rows elsewhere whose external_ids have
// [OwnerID]. All other rows are neither reported nor changed, even if a caller names them.
//
// The package is independent of networks and policies. [Fake] keeps the same contract in memory.
package ovsdb
