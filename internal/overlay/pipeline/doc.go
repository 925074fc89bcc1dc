// Package pipeline compiles the overlay network's flows: what br0 does with a packet. It is pure: plain values in, flows
// out; it knows no switch, no API server and no clock.
//
// A Config describes the cluster and the node. Its methods return fragments, one per owner: Static what every packet
// meets, Pod what an attachment adds, Remote what another node adds. Each flow's cookie leads back to its owner, and
// each comes with a sentence that says what it is for (StaticRules, PodRules, RemoteRules).
//
// Conjunctions compile NetworkPolicies, for ModeNetworkPolicy: they keep what they compiled, so that a change costs what it changes.
//
// Table numbers and their purposes are in tables.go, registers in registers.go. A feature (isolation by VNID, policies,
// Services, egress, multicast) adds flows to the tables that are its own: tables 24, 25, 27, 80 and 100 do nothing
// until it does.
//
// Some decisions that are not obvious from the flows:
//
//   - What a pod may send is listed, not what it may not: in table 20 a frame must match port, both MAC addresses and the
//     IP address of an attachment, and everything else (IPv6, MPLS, LLDP, unknown types) meets the table's last flow.
//     Explicit drops stand only where such a frame could carry something harmful.
//   - A frame's destination MAC decides nothing. Where it leaves, it becomes the right one: the pod's in table 70, tun0's
//     where the host is next. So a wrong one neither helps an attacker nor breaks a pod with unusual routes.
//   - ARP for a pod is carried to that pod, also through the tunnel to its node, and not answered by the switch: nodes
//     that run OpenShift SDN, and hosts that are no nodes, have MAC addresses that do not follow from their IP addresses.
//   - The tunnel's UDP port is closed to pods where packets leave for the host (tables 30, 60, 99), not in table 20: that is
//     after a Service's address was translated, it covers every address of every node, known or not, and leaves
//     pods free to use the port among themselves. A masqueraded packet would reach a node from a known node's address.
//     A fragment need not show its port (never, unless the switch's fragments are set to nx-match): fragments pass, and the
//     host, which reassembles before it translates, has the same rule (package host).
//   - Metadata services and the ports of ignition files are closed to pods in the same places, and for the same reason in package host: what the
//     host translates and what comes in fragments is seen there only. A rejected packet gets to the host with RejectMAC as its source.
//   - A Service is a flow for new connections and a group whose buckets translate. What makes the connection known is the
//     translation, so before the verdicts of later tables: those are passed on each packet that is no reply, and a
//     connection that they do not let through stays new.
//   - Node ports cost one flow for each port and one for each node's address, not one for each pair: table 22 marks the address.
//   - A pod that reaches itself by a Service gets the packet back from an address that nobody has. The answer to it is
//     put back as if it had come from outside, before its connection is looked for.
//   - Services without endpoints are rejected by the host (RejectMAC): the switch cannot make packets.
//   - Whatever the switch does not serve (unknown addresses of Services, addresses of the node that nobody told, SCTP on the
//     userspace datapath) goes to the host as without Services, and kube-proxy serves it.
//   - A UDP connection that begins with a datagram in fragments is served by the host as well: the flow table sees no ports
//     in fragments. Fragments of connections that are known are translated like all else: conntrack sees the whole.
//   - Isolation by VNID is a flow of each pod in table 80, by its port: whom it admits besides the host and global projects.
//     A namespace that moves between VNIDs only adds such flows, then alters what its pods send with, then removes flows.
//   - Between isolated projects, what only the host serves is refused (table 60): the host sends on in its own name.
//   - An egress firewall is its namespace's, and not its VNID's: the pods carry its number, so that it goes with them when
//     their VNID changes. Its rules are flows of table 100 by the destination alone, where the longest range decides.
//   - Multicast of a project that has it is copied to each other node, and on each to the project's pods: nothing of it is there while
//     no project has it. It passes no policy and no tracker.
//   - What need not meet the connection tracker does not: each pass costs about a tenth of the throughput, and nothing in a
//     flat network asks for a connection's state. Without Conntrack that is every packet. With it, it is all but those to
//     Services, those from and to the ports where endpoints answer (Targets), ICMP errors and fragments to pods. An answer
//     on the node of the endpoint is none of them unless the client is there too: the client's node translates it.
//     What the tracker would give besides, dropping packets that belong to no connection, the host does for what leaves
//     the cluster.
//   - With NetworkPolicies, all that pods of the node send and get meets the tracker, isolated or not: who began a connection has to be known
//     by the time that a policy isolates one of its ends.
//   - With NetworkPolicies, a pod's ICMP errors are checked at its own node, by the port that they come in by and the connection that they quote (icmp.go).
package pipeline
