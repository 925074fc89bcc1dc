package host

import (
	"weft.dev/weft/internal/nft"
	"weft.dev/weft/internal/ovsdb"
)

// Passages are what others' chains of nftables have to let pass on a node with a datapath of the given type and tunnels
// at the given UDP port: what pods send to the node and through it, and what the node sends to them; and the
// tunnels, where the kernel's own stack carries them. A userspace datapath's packets meet no hook of the kernel's.
func Passages(datapath string, vxlanPort uint16) []nft.Passage {
	needed := []nft.Passage{
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
			needed = append(needed, nft.Passage{Hook: hook, UDPPort: vxlanPort})
		}
	}
	for i := range needed {
		needed[i].Family = nft.FamilyIPv4
	}
	return needed
}
