// Package pipeline compiles the overlay network's flows: what br0 does with a packet. It is pure: plain values in, flows
// out; it knows no switch, no API server and no clock.
//
// A Config describes the cluster and the node. Its methods return fragments, one per owner: Static what every packet
// meets, Pod what an attachment adds, Remote what another node adds. Each flow's cookie leads back to its owner, and
// each comes with a sentence that says what it is for (StaticRules, PodRules, RemoteRules).
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
//   - Without Conntrack no packet meets the connection tracker, since nothing in a flat network asks for a connection's
//     state, and each pass costs about a tenth of the throughput. What it would give, dropping packets that belong to no
//     connection, the host does for what leaves the cluster.
package pipeline
