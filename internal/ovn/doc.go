// Package ovn is the engine for OVN's northbound database: the rows of routers, switches, ports, routes, policies and ACLs.
//
// The engine contains mechanism and no policy. The desired state consists of plain values ([Row]) under keys ([Key]); [Engine] and [Fake]
// both implement reconcile.Engine[Key, Row].
//
// # Weft chooses the row UUIDs
//
// A key holds the row's UUID in the database, which is derived from the row's purpose ([UUID]). OVN's schema allows two rows with the same
// name in most tables; with chosen UUIDs, a second insert of the same row fails, and a reference to another row can be written without
// reading it. Rows are changed in place.
//
// # Ownership
//
// Every row carries its owner under [OwnerKey] in external_ids. Rows without it are neither read nor written.
//
// # Parents
//
// Ports, routes, policies and ACLs are in the database only while a router or switch refers to them. A [Row] names its parent. The engine
// adds and removes single elements of the parent's set of references, so that rows of one parent may have different owners.
//
// # Fence
//
// [Engine.Lead] writes a term into NB_Global. Every transaction begins with a wait operation for this term, so that a process that lost its
// leadership cannot write any more ([ErrDeposed]), even if it has not noticed the loss.
package ovn
