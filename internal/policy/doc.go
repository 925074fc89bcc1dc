// Package policy compiles networking.k8s.io/v1 NetworkPolicies to verdict rules: who may begin a connection to whom. It is
// pure and knows no engine; every network may use it.
//
// FromNetworkPolicy, FromPod and FromNamespace are the border: they take Kubernetes' objects and return plain values. An
// Index keeps those values, and answers three questions: what a policy allows (Rules), which addresses and pods a set
// has that a rule names (Addresses, Pods), and whether a pod is isolated (Isolation). Each change returns its Effect: the
// policies, the sets (with what came and went) and the pods whose answer is another now, and nothing else. Members of sets
// are not stored but found, through labels, when asked for: what an index holds grows with its objects, never with their
// product.
//
// The verdict on a new connection between two different pods, or a pod and anybody else, is: it passes if the source is not
// isolated for Egress or a rule of that direction allows it, and the destination is not isolated for Ingress or a rule of
// that direction allows it. A rule allows what is in all its dimensions: one of its subjects at the policy's end, one of
// its peers at the other, one of its services as the protocol and destination port. So it can be programmed as a
// conjunction, at the cost of the sum of its dimensions; sets that are equal by what they select have one name, and are
// programmed once.
//
// What the API leaves open, and what holds here:
//
//   - A policy that cannot be understood isolates what it selects and allows nothing. If it is the selector or the policy
//     types that cannot be understood, it selects all pods of its namespace, or isolates in both directions.
//   - A pod that is on its node's network is neither selected nor a peer: its traffic is the node's. IP blocks match it, as
//     they match every address, those of pods included.
//   - A pod that has ended (Succeeded, Failed) has no address any more. One that terminates counts until it is gone.
//   - A connection that is allowed no more ends, unless all policies that isolate the pod in that direction keep those that are
//     established (AnnotationEstablished).
//   - Addresses of two pods at once (one is about to lose it) are in the sets of both.
//   - A named port is a port of the destination pod: of the one that is selected for Ingress, of the peer for Egress, also
//     where the peer is given as an IP block, or not at all. All containers count, those that prepare a pod and those
//     beside it too. If several have the name with different numbers, all these are meant.
//   - A rule without ports allows every protocol, ICMP included; one with ports only those that it names.
//   - A namespace that is not known yet has no labels that a selector could match, not even the empty one.
//
// What networks let pass before they ask: replies and errors of allowed connections, what a node sends to its own pods,
// and what a pod sends to itself. What they add: the address that they gave to a pod of their own, before the API has it
// (Pod.Addresses), and that a pod of which the index knows nothing is closed.
package policy
