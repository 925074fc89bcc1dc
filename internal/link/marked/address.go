package marked

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/link/rtnetlink"
)

func (s *session) commitAddress(item *link.Address, remove bool) error {
	dev, err := s.find(item.Device)
	if err != nil {
		return err
	}
	index, host := dev.Attrs().Index, netip.PrefixFrom(item.Address, item.Address.BitLen())
	label := nl.NewRtAttr(unix.IFA_LABEL, nl.ZeroTerminated(link.AddressLabel))
	if remove {
		request := rtnetlink.DeleteAddress(index, host)
		request.AddData(label)
		return s.one(request, unix.EADDRNOTAVAIL)
	}
	request := rtnetlink.AddressRequest(unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_EXCL, index, host)
	request.AddData(label)
	if err := s.one(request); !errors.Is(err, unix.EEXIST) {
		return err
	}
	have := map[link.Key]link.Item{}
	there := &reader{session: s, state: have, names: map[int]string{index: item.Device}}
	if err := there.readAddresses(); err != nil {
		return err
	}
	if _, ours := have[item.Key()]; !ours {
		return fmt.Errorf("%s has the address %s: %w", item.Device, host, link.ErrForeign)
	}
	return nil
}
