// Package nftables compiles NetworkPolicies to the items of one nftables table (package nft/nftnl), for a network whose pods
// are ports of a bridge of the kernel with net.bridge's nf_call_iptables and nf_call_ip6tables on. It is pure.
//
// A caller keeps a fragment for each object, and compiles it again when the index reports a change:
//
//   - [Static], once: base chains, verdict maps.
//   - [Policy] for each NetworkPolicy: when Effect.Policies has it.
//   - [Set] for each set that a rule names: when Effect.Sets has it, or a rule names it for the first time.
//   - [Pod] for each attached pod: when its isolation or its list of policies (Index.Policies) changes.
//
// # A packet's way
//
//	forward, input  chain egress:  established -> accept; pod to itself -> accept; map of source addresses
//	forward         chain ingress: established -> accept; pod to itself -> accept; map of destination addresses
//	map             not isolated -> accept; isolated -> chain of the pod's policies
//	policies        jump to the chain of each policy; drop
//	policy          accept what a rule allows
//
// Egress and ingress are base chains of their own, so accept in the first leads to the second. A packet from or to the
// bridge whose pod has no element is dropped: a pod is closed until its fragment is in effect. Packets from the node to its
// own pods do not pass these hooks and are not judged.
//
// Pods with the same policies share a chain. A policy costs its rules and sets; a rule costs one nftables rule for each of
// its peer sets and address families, however many services it has.
package nftables
