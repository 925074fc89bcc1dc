package marked

import (
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/link/rtnetlink"
)

// ntfSticky is NTF_STICKY of linux/neighbour.h: no packet moves the entry to another port.
const ntfSticky = 1 << 6

// staticEntries returns the addresses of the static entries of bridges, by the index of the port.
func (s *session) staticEntries() (map[int][][6]byte, error) {
	list, err := rtnetlink.Dump(func() ([]netlink.Neigh, error) { return s.handle.NeighList(0, unix.AF_BRIDGE) })
	if err != nil {
		return nil, fmt.Errorf("listing forwarding entries: %w", err)
	}
	found := map[int][][6]byte{}
	for _, n := range list {
		if n.State&netlink.NUD_NOARP == 0 || n.Flags&netlink.NTF_SELF != 0 || len(n.HardwareAddr) != len([6]byte{}) {
			continue
		}
		mac := [6]byte(n.HardwareAddr)
		if !slices.Contains(found[n.LinkIndex], mac) { // once for each VLAN
			found[n.LinkIndex] = append(found[n.LinkIndex], mac)
		}
	}
	return found, nil
}

// pin adds the requests that leave a port only its one address. If the device was a port before, its other static entries are removed.
func (s *session) pin(list *rtnetlink.Plan, index int, port *link.BridgePort, before bool) error {
	if before {
		entries, err := s.staticEntries()
		if err != nil {
			return err
		}
		for _, mac := range entries[index] {
			if mac != port.MAC {
				list.AddUnless(unix.ENOENT, "removing a forwarding entry of the port", forwardingEntry(unix.RTM_DELNEIGH, 0, index, mac))
			}
		}
	}
	if port.Pinned() {
		list.Add("setting the forwarding entry of the port", forwardingEntry(unix.RTM_NEWNEIGH, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, index, port.MAC))
	}
	return nil
}

func forwardingEntry(kind, flags, index int, mac [6]byte) *nl.NetlinkRequest {
	request := nl.NewNetlinkRequest(kind, flags)
	request.AddData(&ndMsg{netlink.Ndmsg{
		Family: unix.AF_BRIDGE, Index: uint32(index), State: netlink.NUD_NOARP, Flags: netlink.NTF_MASTER | ntfSticky,
	}})
	request.AddData(nl.NewRtAttr(netlink.NDA_LLADDR, mac[:]))
	return request
}
