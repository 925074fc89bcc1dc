// Package egressip decides which node holds each egress IP, and how the traffic of namespaces with egress IPs leaves the cluster, as
// OpenShift SDN defines it. It is pure: plain values in, plain values out.
//
// NetNamespaces want addresses. HostSubnets list the addresses that their nodes host. Plan evaluates both: an address is in use if exactly
// one node lists it, exactly one VNID wants it, and no earlier address of that VNID is on the same node. Namespaces that share a VNID are
// one project, and share the addresses of all of them. The traffic of a project that wants addresses leaves only by its own addresses. If
// none is in use, or if another project wants one of them too, nothing leaves.
//
// Assign computes the lists of nodes that state in egressCIDRs which addresses they may host. An address never moves in one round: one
// round removes it from its node, and the next one gives it to another. So two nodes never answer for it at the same time.
//
// The order of the input does not matter, and the same objects have the same result everywhere: nodes and controller reach the same
// decision without communication.
package egressip
