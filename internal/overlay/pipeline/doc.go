// Package pipeline compiles the overlay network's flows: what br0 does with a packet. It is pure: values in, flows out. It uses no switch,
// no API server and no clock.
//
// A Config describes the cluster and the node. Its methods return fragments, one per owner: Static for flows that every node has, Pod for
// an attachment, Remote for another node. Each flow's cookie identifies its owner, and each flow has a sentence about its purpose
// (StaticRules, PodRules, RemoteRules).
//
// Package conjunction compiles the rules of NetworkPolicies, for ModeNetworkPolicy. It keeps what it has compiled, so that the cost of a
// change depends on the size of the change.
//
// Package layout has the numbers of tables, registers and ports, and their purposes. A feature (isolation by VNID, policies, Services, egress,
// multicast) adds flows to its own tables: tables 24, 25, 27, 80 and 100 do nothing without it.
//
// Some decisions that the flows do not show:
//
//   - Flows list what a pod may send, not what it must not. In table 20 a frame must match port, both MAC addresses and the IP address of
//     an attachment, and everything else (IPv6, MPLS, LLDP, unknown types) meets the table's last flow. There is an explicit drop only
//     where a listed frame could carry something harmful.
//   - A frame's destination MAC address decides nothing. When the frame leaves, it gets the right one: the pod's in table 70, tun0's if the
//     host is the next hop. So a wrong one neither helps an attacker nor breaks a pod with unusual routes.
//   - ARP for a pod is forwarded to that pod, also through the tunnel to its node, and not answered by the switch: the MAC addresses of
//     nodes with OpenShift SDN, and of hosts without a Node, do not follow from their IP addresses.
//   - The tunnel's UDP port is closed to pods where packets leave for the host (tables 30, 60, 99), not in table 20. There, a Service's
//     address is translated already, the flows cover every address of every node, and pods can still use the port among themselves. A
//     masqueraded packet would reach a node from a known node's address. A fragment may lack its port (it never shows one, unless the
//     switch's fragment handling is nx-match). So fragments pass, and the host, which reassembles before it translates, has the same rule
//     (package host).
//   - Metadata services and the ports of ignition files are closed to pods in the same places, and in package host for the same reason:
//     packets that the host translates, and fragments, can only be checked there. A rejected packet goes to the host with RejectMAC as its
//     source.
//   - A Service is a flow for new connections and a group whose buckets translate. The translation commits the connection, and it comes
//     before the verdicts of later tables. So each of them decides about every packet that is not a reply, and a connection that they drop
//     stays new. A verdict of policies also marks it as ended: else packets from the endpoint would count as its replies.
//   - Node ports cost one flow for each port and one for each address of a node, not one for each pair: table 22 marks the address.
//   - A pod that reaches itself by a Service receives the packet from an address that is used nowhere else. Its reply is rewritten as if it
//     came from outside, before conntrack looks up its connection.
//   - The host rejects packets to Services without endpoints (RejectMAC): the switch cannot create packets.
//   - Packets that the switch does not serve (unknown addresses of Services, unlisted addresses of the node, SCTP on the userspace
//     datapath) go to the host as without Services, and kube-proxy serves them.
//   - The host also serves fragmented datagrams with which a UDP connection begins: the flow table sees no ports in fragments. Fragments of
//     known connections are translated like other packets: conntrack reassembles them. Without policies, the first whole datagram begins a
//     connection in the switch. With policies, the connection is known by then, and stays with the host (MarkHost).
//   - Conntrack translates no connection that it knows. So a connection is committed untranslated only if its replies are tracked as well:
//     without policies, what goes to the host in table 60 is not committed, and packets to an address that the host serves are not tracked.
//   - Isolation by VNID is one flow of each pod in table 80, for its port: the VNID that it admits besides the host and global projects.
//     While a namespace moves between VNIDs, first such flows are added, then what its pods send with is changed, then flows are removed.
//   - Between isolated projects, traffic that only the host serves is rejected (table 60): the host forwards it with its own address as the
//     source.
//   - An egress firewall belongs to a namespace, not to a VNID: the pods' flows carry its number, so that it stays with them when their
//     VNID changes. Its rules are flows of table 100 by the destination alone, and the longest range decides.
//   - Multicast of a project is copied to every other node, and there to the project's pods. There are no flows for it while no project has
//     multicast. It passes no policy and no connection tracking.
//   - Packets pass connection tracking only if they must: each pass costs about a tenth of the throughput, and nothing in a flat network
//     uses a connection's state. Without Conntrack no packet passes it. With Conntrack it is packets to Services, from and to the ports of
//     endpoints (Targets), and ICMP errors and fragments to pods. A reply on the endpoint's node is not among them unless the client is
//     there too: the client's node translates it. Dropping packets that belong to no connection would be another use of conntrack; for
//     packets that leave the cluster the host does that.
//   - With NetworkPolicies, all packets to and from pods of the node pass connection tracking, isolated or not: the direction of a
//     connection must be known by the time that a policy isolates one of its pods.
//   - With NetworkPolicies, a pod's ICMP errors are checked at its own node, by the port that they come in by and the connection that they
//     quote (icmp.go).
package pipeline
