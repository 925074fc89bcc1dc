// Package nftables compiles NetworkPolicies to the items of one nftables table (package nft/nftnl), for a network whose pods
// are ports of a bridge of the kernel with net.bridge's nf_call_iptables and nf_call_ip6tables on. It is pure.
//
// [Compiler] is the enforcer.Compiler: it keeps a fragment for each attached pod ([Pod]), for each policy that isolates one ([Policy]), and
// for each set of pods that their rules name ([Set]). [Static] has the base chains and verdict maps. [Guard] is a second table, of family
// bridge. [Flush] ends connections that were revoked.
//
// # Path of a packet
//
//	forward, input  chain egress:  established -> accept; neighbour discovery -> accept; pod to itself -> accept; map of source addresses
//	forward         chain ingress: the same, with the map of destination addresses
//	forward         before these:  between ports of the bridge: set the bit [Judged] of the mark, which is in vain where a chain drops
//	forward, output before these:  chains midstream-from, midstream-to: TCP in the middle of a connection without a conntrack entry, from or
//	                               to an isolated pod -> drop
//	map             not isolated -> return, which ends the base chain; isolated -> chain of the pod's policies
//	policies        jump to the chain of each policy; drop
//	policy          accept what a rule allows
//	bridge forward  chain guard:   from a pod's port without that bit -> drop
//
// Egress and ingress are separate base chains, so a packet that the first accepts goes on to the second. A packet from or to the bridge
// whose pod has no element is dropped: a pod is closed until its fragment is in effect. Packets from the node to its own pods do not pass
// these hooks and are not judged.
//
// An established connection passes without being judged again. When a permission is revoked, [Flush] removes the entries of its
// connections from conntrack, and later packets are judged as new. Then the replying side of a TCP connection could make a new connection
// of it, because conntrack picks up connections in the middle: the chains midstream-from and midstream-to drop such packets.
//
// Pods with the same policies share a chain. A policy costs its rules and sets; a rule costs one nftables rule for each of
// its peer sets and address families, however many services it has.
package nftables
