package notify

import (
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/link/rtnetlink"
)

// isItem reports whether a message about an address is about a [link.Address].
func isItem(attributes []byte) bool {
	if !rtnetlink.WellFormed(attributes) {
		return false
	}
	list, err := nl.ParseRouteAttr(attributes)
	if err != nil {
		return false
	}
	for _, attr := range list {
		if attr.Attr.Type == unix.IFA_LABEL {
			return nl.BytesToString(attr.Value) == link.AddressLabel
		}
	}
	return false
}
