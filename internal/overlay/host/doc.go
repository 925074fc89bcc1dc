// Package host compiles what the overlay network needs of a node besides flows: the switch's bridge and ports, the
// host's interface tun0 and its routes, and rules of nftables. It is pure: plain values in, fragments out.
//
// Decisions that are not obvious from the fragments:
//
//   - The way around the switch is closed by device group. A userspace datapath reads a veth by a packet socket, and the
//     kernel takes each frame as well. Devices in PodGroup send nothing into the kernel: neither IP (prerouting, before
//     connection tracking) nor ARP. The rules are there before the first such device.
//   - A packet that goes through the host from pod to pod (to a Service, until the switch serves them) is masqueraded to
//     the gateway. Its replies then come back through the host, which knows the translation and the switch does not;
//     and the host never sends as a pod.
//   - Where pods are isolated by NetworkPolicies, what the host masquerades for others than itself on its way to this node's pods has an
//     address of its own (Config.Outside): with the gateway's it would pass as the node's. It is a link-local one, of no cluster's
//     ranges, so that no pod may have it and no block of pods lets it in; and kube-proxy's translation comes too late for it.
//   - Whatever the host passes on to pods of other nodes has the gateway's address: the other node lets only addresses of
//     this node's subnet in, and the replies have to come back here.
//   - The Services' network is routed to tun0, though the switch would send it back: the source address is chosen by
//     that route, before kube-proxy translates the destination, and has to be the gateway's for the same two reasons. An
//     address that is no Service's ends at tun0 instead of leaving by the default route.
//   - The tunnel's port is open to known nodes only, before any socket. Source addresses are easy to forge on a network
//     that does not filter them; what a forged packet could say is then limited by the flows to what that node may say.
//   - Nothing is accepted here: an accept in one table does not keep another from dropping, and nothing is dropped by
//     default. What other tables would drop is let through there (Passages, nft.ForeignJump); it still meets what is
//     dropped here, so the tunnel's port stays open to known nodes only.
//   - What leaves by an egress address comes with a source MAC address that names the project, on every datapath alike: a packet's
//     mark does not get here from the one in userspace. It becomes the mark by which the packet is translated.
//   - The administrator's own rules for what leaves (tun0 to outside) have a chain in Weft's table (AdminChain). It comes
//     after what must never leave, so that an accept there opens nothing that Weft closes, and it is never flushed.
//     Everything else in Weft's tables is put back to what Weft wants.
package host
