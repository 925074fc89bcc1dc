// Package nftables compiles NetworkPolicies to the items of one nftables table (package nft/nftnl), for a network whose pods
// are ports of a bridge of the kernel with net.bridge's nf_call_iptables and nf_call_ip6tables on. It is pure.
//
// [Compiler] is the enforcer.Compiler: it keeps a fragment for each attached pod ([Pod]), for each policy that isolates one ([Policy]), and
// for each set of pods that their rules name ([Set]). [Static] has the other chains and the verdict maps, [Gates] the base chains that lead to
// them. [Guard] is a second table, of family bridge. [Flush] ends connections that were revoked.
//
// # Path of a packet
//
//	forward         base chain:    chain forwarded; only while a pod is isolated or not known
//	input           base chain:    chain received; only while a pod is isolated or not known
//	forwarded       established -> set the bit [Judged] of the mark, accept; between ports of the bridge: set it, which is
//	                in vain where a rule drops; chain midstream; chain egress; chain ingress
//	received        not from the bridge -> accept; established -> accept; chain egress
//	established     established or related; while a revocation is being made, replies and related packets only
//	output          base chain:    chain midstream-to; only while a pod is isolated for egress
//	midstream       TCP in the middle of a connection without a conntrack entry, from or to an isolated pod -> drop
//	egress          map of source addresses; neighbour discovery -> return; drop
//	ingress         the same, with the map of destination addresses
//	map             not isolated -> return; isolated -> chain of the pod's policies
//	policies        chain always; chain of each policy; for egress, what one of them allowed returns; drop
//	always          neighbour discovery, and a pod to itself, are allowed as by a policy
//	policy          what a rule allows: for egress, set a bit of the mark and return, since ingress follows; for ingress, accept
//	bridge forward  chain guard:   from a pod's port without the bit Judged -> drop; only while a pod is isolated or not known
//
// A hook has one base chain: packets of established connections, which are nearly all, cross the first rule that it leads to, or two. While
// there are base chains, a packet from or to the bridge whose pod has no element is dropped. A pod has to be kept from the bridge until its
// fragment is in effect, together with the base chains if it needs them. Packets from the node to its own pods are
// not judged.
//
// An established connection passes without being judged again. When a permission is revoked, [Flush] removes the entries of its
// connections from conntrack, and later packets are judged as new. Until it has, the rules of forwarded and received accept only replies and
// related packets, so that the side that began a connection is judged from the transaction on ([Compiler.Commit]). After it, the
// replying side of a TCP connection could make a new connection of it, because conntrack picks up connections in the middle: the chains
// midstream-from and midstream-to drop such packets.
//
// Pods with the same policies share a chain. A policy costs its rules and sets; a rule costs one nftables rule for each of
// its peer sets and address families, however many services it has.
package nftables
