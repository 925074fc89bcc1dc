// Package service compiles Services and EndpointSlices to virtual addresses: what a pod on this node reaches behind an
// address, a protocol and a port. It is pure and knows no engine; every network may use it.
//
// FromService and FromSlice are the border: they take Kubernetes' objects and return plain values, leaving out what
// cannot be used. Compile puts a Service and its slices together. The rules are kube-proxy's for traffic that begins at
// a pod of this node, since both serve the same cluster and users must not see who did:
//
//   - Ready endpoints are used; if there are none, those that serve while they terminate. For internalTrafficPolicy
//     Local each of the two is limited to this node, independently of what other nodes have.
//   - A Service that has no usable endpoint anywhere rejects; one whose policy leaves none on this node drops, because
//     another node might well serve.
//   - externalTrafficPolicy Local binds traffic that comes from outside. A pod that calls an external address
//     reaches all endpoints, as if it had gone out to a load balancer and come back in.
//   - The conditions decide, not the fields of a Service that led to them: who publishes addresses that are not ready
//     has the controller mark them ready.
//   - Hints of topology are followed where every ready endpoint has one and some name this node or its zone.
//
// IPv4 only for now: slices and addresses of other families are left out without an error.
package service
