// Package service compiles Services and EndpointSlices to virtual addresses: which endpoints a pod of this node reaches behind an address,
// a protocol and a port. It is pure and independent of engines; every network may use it.
//
// FromService and FromSlice convert Kubernetes' objects to plain values, and leave out what cannot be used. Compile combines a Service and
// its slices. The rules are those of kube-proxy for traffic from a pod of this node, because both serve the same cluster and users must not
// notice a difference:
//
//   - Ready endpoints are used. If there are none, endpoints that serve while they terminate are used. With internalTrafficPolicy Local
//     both are limited to this node, independently of other nodes.
//   - A Service without a usable endpoint anywhere rejects. A Service whose policy leaves no endpoint on this node drops, because another
//     node might serve.
//   - externalTrafficPolicy Local is for traffic from outside. A pod that connects to an external address reaches all endpoints, as if its
//     traffic had passed a load balancer outside.
//   - The endpoints' conditions decide, not the Service's fields that led to them: with publishNotReadyAddresses, the endpoint controller
//     marks the endpoints ready.
//   - Topology hints are used if every ready endpoint has one and some name this node or its zone.
//
// Only IPv4 is supported for now: slices and addresses of other families are left out without an error.
package service
