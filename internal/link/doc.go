// Package link is the engine for rtnetlink: devices and their addresses, veth pairs, routes, permanent neighbours and policy routing rules,
// in the engine's own network namespace and in others.
//
// The engine contains mechanism and no policy. The desired state consists of plain values ([Device], [Veth], [Bridge], [BridgePort],
// [Route], [Neighbour], [Rule]) keyed by [Key]; [Engine] and [Fake] both implement reconcile.Engine[Key, Item].
//
// # What the engine manages
//
// Read returns what Weft has programmed and nothing else, so that strays are found and the work of other programs is left alone. The marks
// are kept by the kernel and survive a restart of the process:
//
//   - a device or veth: its alias starts with [AliasPrefix]. Devices named in a commit stay managed until a commit deletes them, also while
//     they are missing or were created again without alias.
//   - a bridge: its alias starts with [AliasPrefix]. Its ports are managed if they are Weft's by their alias, or were named in a commit.
//   - a route: its protocol is [Protocol].
//   - a rule: its protocol is [Protocol].
//   - a neighbour: it is permanent and on a managed device.
//
// # Order of a commit
//
// A commit works from the change and from the result of the last Read and Commit; it reads nothing. Routes and neighbours of a namespace
// are sent together, and each is answered separately.
//
// Additions precede removals, and each step is safe with only the steps before it: veth pairs and bridges, then each device's group,
// offloads, sysctls, MTU and MAC, then its addresses, then up; then ports of bridges, neighbours, routes, rules. Removals have the reverse
// order.
//
// Netlink has no transactions. A change that consists only of addresses, neighbours and routes fails by key (reconcile.PartialError): the
// others are in effect. In a change with a device, a bridge or a rule, a failure undoes all steps before it in reverse order; if that fails
// too, the error is a [RollbackError].
//
// # The interface of a pod
//
// [Pods] creates, checks and reaps the veth pairs of pods. It is used during a CNI ADD and works without the engine. Its links carry
// [PodAliasPrefix] and are never managed by the engine.
package link
