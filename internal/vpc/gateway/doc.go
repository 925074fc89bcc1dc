// Package gateway compiles a NAT gateway to the complete state of its pod's network namespace: addresses of net1, routes, sysctls and one
// nftables table. It is pure, so that the controller and the agent compile the same objects to the same hash.
//
// # The path of a packet
//
//	from net1   destination is a floating IP, else a forwarded port of an EIP: translated, forwarded by eth0
//	to net1     source has a floating IP, else the EIP of the SNAT rule with the longest prefix, else dropped and counted
//	eth0 twice  a pod of the VPC to an EIP of its own gateway: translated both ways (hairpin)
//
// No private address leaves by net1. The first packet of a connection is dropped in the chain postrouting unless a rule translates it, and
// conntrack translates all packets of the connection alike. Packets that conntrack does not assign to a connection are dropped: forwarded
// ones in the chain forward, the gateway's own in the chains input and output. If the route to the internal address of a translated
// connection is removed, its packets are routed to net1; the chain forward drops them.
//
// # Rules that exclude each other
//
// If rules require the same thing, the oldest rule gets it; the others are in [Result].Problems. The objects' creation times decide, and
// their names within one second, so that controller and agent choose the same rule.
package gateway
