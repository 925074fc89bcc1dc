package link

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// AddressLabel is the label (IFA_LABEL, at most 15 bytes) of every address that is an [Address] item. It distinguishes them from the
// device's other addresses.
const AddressLabel = "weft:address"

// Address is an additional IPv4 address on a device that is otherwise configured by another program. Its prefix is /32: so it depends on no
// other address of the device, the kernel adds no route for it, and never selects it as a source by itself.
type Address struct {
	Device  string
	Address netip.Addr
}

// Key implements Item.
func (a *Address) Key() Key {
	return Key{Kind: KindAddress, Name: a.Address.String() + " dev " + a.Device}
}

// Equal implements Item.
func (a *Address) Equal(other Item) bool {
	o, ok := other.(*Address)
	return ok && *a == *o
}

// String implements Item.
func (a *Address) String() string { return "address " + a.Address.String() + " dev " + a.Device }

func (a *Address) validate() error {
	if !a.Address.Is4() {
		return fmt.Errorf("address %s is not IPv4", a.Address)
	}
	return ValidateName(a.Device)
}

func (s *session) commitAddress(item *Address, remove bool) error {
	link, err := s.find(item.Device)
	if err != nil {
		return err
	}
	index, host := link.Attrs().Index, netip.PrefixFrom(item.Address, item.Address.BitLen())
	label := nl.NewRtAttr(unix.IFA_LABEL, nl.ZeroTerminated(AddressLabel))
	if remove {
		request := deleteAddress(index, host)
		request.AddData(label)
		return s.one(request, unix.EADDRNOTAVAIL)
	}
	request := addressRequest(unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_EXCL, index, host)
	request.AddData(label)
	if err := s.one(request); !errors.Is(err, unix.EEXIST) {
		return err
	}
	have := map[Key]Item{}
	there := &reader{session: s, state: have, names: map[int]string{index: item.Device}}
	if err := there.readAddresses(); err != nil {
		return err
	}
	if _, ours := have[item.Key()]; !ours {
		return fmt.Errorf("%s has the address %s: %w", item.Device, host, ErrForeign)
	}
	return nil
}

// OtherAddresses returns the IPv4 addresses of this network namespace, on any device, that are not [Address] items: other programs added
// them.
func OtherAddresses() (map[netip.Addr]struct{}, error) {
	list, err := dump(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_V4) })
	if err != nil {
		return nil, fmt.Errorf("listing addresses: %w", err)
	}
	others := map[netip.Addr]struct{}{}
	for _, have := range list {
		if have.Label != AddressLabel {
			others[toPrefix(have.IPNet).Addr()] = struct{}{}
		}
	}
	return others, nil
}

// HoldsAddress reports whether this network namespace has an address as an [Address] item. It returns false if the addresses cannot be
// listed.
func HoldsAddress(address netip.Addr) bool {
	list, err := dump(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_V4) })
	return err == nil && slices.ContainsFunc(list, func(have netlink.Addr) bool {
		return have.Label == AddressLabel && toPrefix(have.IPNet).Addr() == address
	})
}

// isItem reports whether a message about an address is about an [Address].
func isItem(attributes []byte) bool {
	if !wellFormed(attributes) {
		return false
	}
	list, err := nl.ParseRouteAttr(attributes)
	if err != nil {
		return false
	}
	for _, attr := range list {
		if attr.Attr.Type == unix.IFA_LABEL {
			return nl.BytesToString(attr.Value) == AddressLabel
		}
	}
	return false
}
