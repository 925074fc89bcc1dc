package devconf

import (
	"net"

	"github.com/vishvananda/netlink"

	"weft.dev/weft/internal/link"
	"weft.dev/weft/internal/link/rtnetlink"
)

// ReadDevice reads everything about a device of the calling thread's namespace; the handle must be of the same namespace.
func ReadDevice(handle *netlink.Handle, dev netlink.Link) (*link.Device, error) {
	attrs := dev.Attrs()
	device := &link.Device{
		Name: attrs.Name, MTU: attrs.MTU, MAC: attrs.HardwareAddr, Up: attrs.Flags&net.FlagUp != 0,
		Group: attrs.Group, TxQLen: max(attrs.TxQLen, 0),
	}
	var err error
	if device.Addresses, device.NoPrefixRoute, err = rtnetlink.DeviceAddresses(handle, attrs.Index); err != nil {
		return nil, err
	}
	if device.TxOffload, err = txOffload(attrs.Name); err != nil {
		return nil, err
	}
	var every link.Sysctls
	for _, entry := range link.SysctlEntries() {
		*entry.Get(&every) = link.On
	}
	if device.Sysctls, err = ReadSysctls(attrs.Name, every); err != nil {
		return nil, err
	}
	return device, nil
}
