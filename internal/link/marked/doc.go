// Package marked is the engine for links that carry Weft's marks: devices and their addresses, veth pairs, bridges, routes, permanent
// neighbours and policy routing rules, in the engine's own network namespace and in others. [Engine] and [Fake] both implement
// reconcile.Engine[link.Key, link.Item].
//
// # What the engine manages
//
// Read returns what Weft has programmed and nothing else, so that strays are found and the work of other programs is left alone. The marks
// are kept by the kernel and survive a restart of the process:
//
//   - a device or veth: its alias starts with [link.AliasPrefix]. Devices named in a commit stay managed until a commit deletes them, also while
//     they are missing or were created again without alias.
//   - a bridge: its alias starts with [link.AliasPrefix]. Its ports are managed if they are Weft's by their alias, or were named in a commit.
//   - a route: its protocol is [link.Protocol].
//   - a rule: its protocol is [link.Protocol].
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
// too, the error is a [link.RollbackError].
package marked
