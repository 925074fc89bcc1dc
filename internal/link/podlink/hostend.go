package podlink

import (
	"fmt"
	"net"
	"strings"

	"github.com/vishvananda/netlink"

	"weft.dev/weft/internal/link"
)

// HostEnd is the part of a host veth's state that another program may change; Watch reports such changes.
type HostEnd struct {
	// MTU in bytes.
	MTU int
	// Group is the device group.
	Group uint32
	// Up is the administrative state.
	Up bool
}

// String returns the host veth in the words of ip(8).
func (h HostEnd) String() string {
	state := "down"
	if h.Up {
		state = "up"
	}
	return fmt.Sprintf("mtu %d group %d %s", h.MTU, h.Group, state)
}

// HostEndOf returns a link's state as a host veth, if it is one.
func HostEndOf(dev netlink.Link) (HostEnd, bool) {
	attrs := dev.Attrs()
	ours := dev.Type() == "veth" && strings.HasPrefix(attrs.Alias, link.PodAliasPrefix) && attrs.Group != DeadGroup
	return HostEnd{MTU: attrs.MTU, Group: attrs.Group, Up: attrs.Flags&net.FlagUp != 0}, ours
}
