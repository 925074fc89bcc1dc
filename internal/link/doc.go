// Package link is the engine for what rtnetlink holds: devices and their addresses, veth pairs, routes,
// permanent neighbours and policy routing rules, in the engine's own network namespace and in others.
//
// The engine knows mechanism and no policy. Desired state comes as plain values ([Device], [Veth], [Bridge], [BridgePort], [Route],
// [Neighbour], [Rule]) keyed by [Key]; [Engine] and [Fake] both implement reconcile.Engine[Key, Item].
//
// # What is in the engine's care
//
// Read returns what Weft has programmed and nothing else, so that a stray is found and a stranger's work is
// left alone. The marks are kept by the kernel and survive a restart of the process:
//
//   - a device or veth: its alias starts with [AliasPrefix]. Devices named in a commit stay in care until they are
//     deleted from it, also while they are missing or were re-created without alias.
//   - a bridge: its alias starts with [AliasPrefix]. Its ports are in care if they are Weft's by their alias, or were named in
//     a commit.
//   - a route: its protocol is [Protocol].
//   - a rule: its protocol is [Protocol].
//   - a neighbour: it is permanent and on a device in care.
//
// # Order of a commit
//
// A commit works from the change and from what the last Read and Commit have found; it reads nothing. Routes and
// neighbours of a namespace are sent together, and each is answered by itself.
//
// Additions go before removals, and each step is safe with the ones before it alone: veth pairs and bridges, then each
// device's group, offloads, sysctls, MTU and MAC, then its addresses, then up; then ports of bridges, neighbours, routes,
// rules. Removals go the other way round.
//
// Netlink has no transactions. A change of addresses, neighbours and routes alone fails by key (reconcile.PartialError): the
// others are in effect. In a change that has a device, a bridge or a rule, a failure undoes all steps before it in reverse,
// and the error says so ([RollbackError] when that failed too).
//
// # The interface of a pod
//
// [Pods] makes, checks and reaps the veth pairs of pods; it is on the path of a CNI ADD and works without
// the engine. Its links carry [PodAliasPrefix] and are never in the engine's care.
package link
