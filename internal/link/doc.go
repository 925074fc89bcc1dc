// Package link is the engine for what rtnetlink holds: devices and their addresses, veth pairs, routes,
// permanent neighbours and policy routing rules, in the engine's own network namespace and in others.
//
// The engine knows mechanism and no policy. Desired state comes as plain values ([Device], [Veth], [Route],
// [Neighbour], [Rule]) keyed by [Key]; [Engine] and [Fake] both implement reconcile.Engine[Key, Item].
//
// # What is in the engine's care
//
// Read returns what Weft has programmed and nothing else, so that a stray is found and a stranger's work is
// left alone. The marks are kept by the kernel and survive a restart of the process:
//
//   - a device or veth: its alias starts with [AliasPrefix]. Devices named in a commit stay in care until they are
//     deleted from it, also while they are missing or were re-created without alias.
//   - a route: its protocol is [Protocol].
//   - a rule: its protocol is [Protocol].
//   - a neighbour: it is permanent and on a device in care.
//
// # Order of a commit
//
// Additions go before removals, and each step is safe with the ones before it alone: veth pairs, then each
// device's group, offloads, sysctls, MTU and MAC, then its addresses, then up; then neighbours, routes, rules. Removals
// go the other way round: rules, routes, neighbours, addresses, pairs. Netlink knows no transaction: when a step
// fails, the ones before it are undone in reverse, and the error says so ([RollbackError] when that failed too).
//
// # The interface of a pod
//
// [Pods] makes, checks and reaps the veth pairs of pods; it is on the path of a CNI ADD and works without
// the engine. Its links carry [PodAliasPrefix] and are never in the engine's care.
package link
