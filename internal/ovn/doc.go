// Package ovn is the engine for OVN's northbound database: the rows of routers, switches, ports, routes, policies and ACLs.
//
// The engine knows mechanism and no policy. Desired state comes as plain values ([Row]) under keys ([Key]); [Engine] and
// [Fake] both implement reconcile.Engine[Key, Row].
//
// # Row UUIDs are chosen
//
// A key holds the UUID that the row has in the database, derived from what the row is for ([UUID]). OVN's schema allows two
// rows of one name in most tables; with chosen UUIDs a second insert of the same row fails, and a row that refers to another
// one needs no reading. Rows change in place.
//
// # Ownership
//
// Every row carries its owner under [OwnerKey] in external_ids. Rows without it are neither read nor written.
//
// # Parents
//
// Ports, routes, policies and ACLs are in the database only while a router or switch refers to them. A [Row] names its parent;
// the engine keeps the parent's set of references, one element at a time, so that rows of one parent may have different owners.
//
// # Fence
//
// [Engine.Lead] writes a term into NB_Global. Every transaction begins with a wait operation for this term, so that a process
// that lost its leadership cannot write any more ([ErrDeposed]), whatever it believes.
package ovn
