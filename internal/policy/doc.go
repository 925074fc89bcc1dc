// Package policy compiles networking.k8s.io/v1 NetworkPolicies to verdict rules, which say what may begin a connection to what. It is
// pure and independent of engines; every network may use it.
//
// FromNetworkPolicy, FromPod and FromNamespace convert Kubernetes' objects to plain values. An Index keeps those values and answers three
// questions: what a policy allows (Rules), which addresses and pods are in a set that a rule names (Addresses, Pods), and whether a pod
// is isolated (Isolation). Each change returns its Effect: only the policies, the sets (with added and removed members) and the pods
// whose answer has changed. An index does not store the members of sets. It finds them by labels at each call, so its size grows with the
// number of objects, never with their product.
//
// The verdict applies to a new connection between two different pods, or between a pod and any other address. The connection passes if
// both of these hold: the source is not isolated for Egress, or a rule of that direction allows it; and the destination is not isolated
// for Ingress, or a rule of that direction allows it. A rule allows what matches all its dimensions: a subject at the policy's side, a
// peer at the other side, and a service as protocol and destination port. So an engine can program it as a conjunctive match, at the cost
// of the sum of its dimensions. Sets that select the same pods have one name, and are programmed once.
//
// This package decides the cases that the API leaves open:
//
//   - A policy that cannot be parsed isolates the pods that it selects and allows nothing. If its selector cannot be parsed, it selects
//     all pods of its namespace. If its policy types cannot be parsed, it isolates in both directions.
//   - A pod on its node's network is neither selected nor a peer: its traffic is the node's. IP blocks match it, as they match every
//     address, including those of pods.
//   - A pod that has ended (Succeeded, Failed) has no address any more. A terminating pod counts until it is deleted.
//   - A connection that is no longer allowed ends. It remains if all policies that isolate the pod in that direction keep established
//     connections (AnnotationEstablished).
//   - An address of two pods at once (one is about to lose it) is in the sets of both.
//   - A named port is a port of the destination pod: of the selected pod for Ingress, of the peer for Egress. That also holds if the peer
//     is an IP block, or not restricted. All containers count, including init and sidecar containers. If containers use the name with
//     different numbers, all these numbers count.
//   - A rule without ports allows every protocol, including ICMP; a rule with ports allows only these ports.
//   - A namespace without a namespace object has no labels. No selector matches it, not even the empty one.
//
// Networks let some traffic pass without policies: replies and errors of allowed connections, traffic from a node to its own pods, and
// traffic from a pod to itself. Networks also add two things: the address that they gave to a pod of their own, before the API has it
// (Pod.Addresses); and a pod that is not in the index is closed.
package policy
