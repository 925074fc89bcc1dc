// Package egressip decides who holds which egress address, and what becomes of the traffic of namespaces that want some:
// OpenShift SDN's egress IPs. It is pure: plain values in, plain values out.
//
// NetNamespaces want addresses, HostSubnets list those that their nodes host. Plan judges both: an address is in use if one
// node lists it, one VNID wants it, and no earlier address of that VNID is on the same node. Namespaces that share a VNID
// are one project, and share what any of them wants. Whoever wants an address leaves by none but his own: where none is in
// use, or where another project wants one of them too, nothing leaves.
//
// Assign writes the lists of nodes that say by egressCIDRs what they may host. An address never moves in one round: one round
// takes it off its node, the next gives it to another, so that no two nodes answer for it.
//
// The order of what is given never matters, and the same objects have the same outcome everywhere: nodes and controller
// judge alike without asking each other.
package egressip
