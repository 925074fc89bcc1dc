// Package northbound compiles VPCs, subnets and ports to rows of OVN's northbound database. It is pure: the same values give
// the same rows, in whatever order they come.
//
// # Rows
//
//	Vpc       Logical_Router, its static routes and policies, its ports to peers
//	Subnet    Logical_Switch, the port pair to the router, ACLs
//	address   Logical_Switch_Port
//
// Names hold a slash where two names meet, because names of Kubernetes objects have none: the port of router "a-b" to switch "c"
// and that of router "a" to switch "b-c" differ.
//
// # Routes by source
//
// Kube-OVN's patched OVN ranks all routes by source below all routes by destination. Stock OVN compares both by the length of
// their prefixes, so that a route by source takes packets to connected subnets as well. Routes by source are therefore compiled
// to policies of the lowest priority: one for each prefix, with matches that exclude each other and every prefix that the router
// knows by destination. Policies are judged after routing, so a default route brings the packets there, and a policy drops what
// reaches it from other sources. With a default route by destination in the same table, routes by source have no effect; the
// compiler reports them.
//
// # Priorities of policies
//
//	1            routes by source, and the drop beside them
//	2 to 32767   a user's policy route of priority p is p+2 (0 loses to OVN's own default flow)
package northbound
