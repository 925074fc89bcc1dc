package link

import (
	"fmt"
	"net/netip"
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
