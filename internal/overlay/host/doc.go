// Package host compiles what the overlay network needs on a node besides flows: the switch's bridge and ports, the host's interface tun0
// and its routes, and rules of nftables. It is pure: values in, fragments out.
//
// Decisions that the fragments do not show:
//
//   - The path around the switch is closed by device group. A userspace datapath reads a veth by a packet socket, and the kernel receives
//     each frame as well. Frames from devices in PodGroup are dropped before the kernel processes them: IP (prerouting, before connection
//     tracking) and ARP. The rules are in effect before the first such device exists.
//   - A packet from pod to pod through the host (to a Service that the host serves) is masqueraded to the gateway. So its replies return
//     through the host, which has the translation that the switch does not have, and the host never sends with a pod's address.
//   - With isolation by NetworkPolicies, packets to this node's pods that the host masquerades for others than itself have an address of
//     their own (Config.Outside): with the gateway's they would pass as the node's. It is a link-local address outside the cluster's
//     ranges, so that no pod can have it and no range of pods in a policy admits it. kube-proxy's translation comes too late to change it.
//   - Every packet that the host forwards to pods of other nodes has the gateway's address: the other node admits only addresses of this
//     node's subnet, and replies must return here.
//   - The Services' network is routed to tun0, although the switch would return its packets: the source address is chosen by that route,
//     before kube-proxy translates the destination, and must be the gateway's for the same two reasons. A packet to an address that is no
//     Service's ends at tun0 instead of leaving by the default route.
//   - The tunnel's port is open only to known nodes, before any socket. Source addresses are easy to forge on a network without filters.
//     The flows then limit a forged packet to what that node may send.
//   - Nothing is accepted here: an accept in one table does not prevent a drop in another, and nothing is dropped by default. Packets that
//     other tables would drop are accepted there (Passages, nft.ForeignJump). They still meet the drops here, so the tunnel's port stays
//     open only to known nodes.
//   - A packet that leaves by an egress IP has a source MAC address that identifies the project, on every datapath: a packet's mark does
//     not get here from the userspace datapath. The MAC address determines the mark by which the packet is translated.
//   - The administrator's own rules for packets that leave (tun0 to outside) have a chain in Weft's table (AdminChain). It comes after the
//     rules about what must never leave, so that an accept there opens nothing that Weft closes, and it is never flushed. Everything else
//     in Weft's tables is restored to the desired state.
package host
