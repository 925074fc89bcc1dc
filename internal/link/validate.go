package link

import (
	"errors"
	"fmt"
	"net/netip"
)

// Validate reports whether an item can be programmed.
func Validate(item Item) error {
	switch item := item.(type) {
	case *Veth:
		return errors.Join(ValidateName(item.Name), ValidateName(item.PeerName))
	case *Bridge:
		return ValidateName(item.Name)
	case *BridgePort:
		return errors.Join(ValidateName(item.Bridge), ValidateName(item.Device))
	case *Device:
		if len(item.Owner) > OwnerMax {
			return fmt.Errorf("owner is longer than %d bytes", OwnerMax)
		}
		return ValidateName(item.Name)
	case *Address:
		return item.validate()
	case *Neighbour:
		if !item.Address.IsValid() || len(item.MAC) == 0 {
			return fmt.Errorf("address %s or MAC %q is missing", item.Address, item.MAC)
		}
		return ValidateName(item.Device)
	case *Route:
		if !item.Blackhole {
			if err := ValidateName(item.Device); err != nil {
				return err
			}
		}
		return item.Validate()
	case *Rule:
		if item.Priority <= 0 {
			return fmt.Errorf("priority %d is not above 0", item.Priority)
		}
	}
	return nil
}

// OwnerMax limits an owner in bytes, so that the alias is shorter than IFALIASZ, 256 bytes.
const OwnerMax = 200

// Validate reports whether the addresses of a route are valid and of one family.
func (r *Route) Validate() error {
	if !r.Dst.IsValid() || r.Dst.Addr().Is4In6() {
		return fmt.Errorf("route: invalid destination %s", r.Dst)
	}
	for _, address := range []netip.Addr{r.Gateway, r.Source} {
		if address.IsValid() && address.Is4() != r.Dst.Addr().Is4() {
			return fmt.Errorf("route to %s: %s is of the other address family", r.Dst, address)
		}
	}
	return nil
}
