package host

import (
	"weft.dev/weft/internal/nft"
	"weft.dev/weft/internal/ovsdb"
)

// Traffic returns what other programs' chains of nftables must let pass on a node with this type of datapath and tunnels at this UDP port:
// packets of pods to the node and through it, the node's packets to pods, and the tunnels if the kernel's own stack carries them. Packets
// of a userspace datapath pass no hook of the kernel.
func Traffic(datapath string, vxlanPort uint16) []nft.Traffic {
	needed := []nft.Traffic{
		{Hook: nft.HookIngress, InDevice: Tun},
		{Hook: nft.HookPrerouting, InDevice: Tun},
		{Hook: nft.HookInput, InDevice: Tun},
		{Hook: nft.HookForward, InDevice: Tun},
		{Hook: nft.HookForward, OutDevice: Tun},
		{Hook: nft.HookOutput, OutDevice: Tun},
		{Hook: nft.HookPostrouting, OutDevice: Tun},
	}
	if datapath == ovsdb.DatapathSystem {
		for _, hook := range []nft.Hook{nft.HookPrerouting, nft.HookInput, nft.HookOutput, nft.HookPostrouting} {
			needed = append(needed, nft.Traffic{Hook: hook, UDPPort: vxlanPort})
		}
	}
	for i := range needed {
		needed[i].Family = nft.FamilyIPv4
	}
	return needed
}
