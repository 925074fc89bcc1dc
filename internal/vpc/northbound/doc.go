// Package northbound compiles VPCs, subnets and ports to rows of OVN's northbound database. It is pure: the same values result in the same
// rows, whatever their order.
//
// # Rows
//
//	Vpc       Logical_Router, its static routes and policies, its ports to peers
//	Subnet    Logical_Switch, the port pair to the router, ACLs
//	address   Logical_Switch_Port
//
// Combined names are joined with a slash, which names of Kubernetes objects never contain: so the port of router "a-b" to switch "c" and
// that of router "a" to switch "b-c" differ.
//
// # Routes by source
//
// Kube-OVN's patched OVN ranks all routes by source below all routes by destination. Stock OVN compares both by prefix length, so that a
// route by source would also match packets to connected subnets. Therefore routes by source are compiled to policies of the lowest
// priority: one for each prefix, with matches that do not overlap each other or a prefix routed by destination. Policies are
// evaluated after routing, so a default route makes packets reach them, and a further policy drops packets from other sources. With a
// default route by destination in the same table, routes by source have no effect; the compiler reports them.
//
// Each policy excludes all prefixes routed by destination, so that the text grows with the product of both kinds of routes. It is limited for
// the router as a whole: a table that exceeds the limit has no policies and no default route, and OVN drops the packets that none of its
// routes matches.
//
// # Priorities of policies
//
//	1            routes by source, and the drop beside them
//	2 to 32767   a user's policy route of priority p is p+2 (0 loses to OVN's own default flow)
package northbound
