package ovsdb

import (
	"errors"
	"fmt"
	"slices"
	"syscall"

	"github.com/vishvananda/netlink"
)

// Types of datapaths, as in Bridge.datapath_type.
const (
	// DatapathSystem forwards in the kernel and needs its module openvswitch.
	DatapathSystem = "system"
	// DatapathNetdev forwards in ovs-vswitchd itself.
	DatapathNetdev = "netdev"
)

// Datapath describes the datapaths that a switch can use.
type Datapath struct {
	// Types are the types that this ovs-vswitchd is built with, sorted.
	Types []string
	// Kernel reports whether the running kernel has the datapath (the generic netlink family ovs_datapath).
	Kernel bool
}

// Supports reports whether a bridge of that type can work.
func (d Datapath) Supports(datapathType string) bool {
	return slices.Contains(d.Types, datapathType) && (datapathType != DatapathSystem || d.Kernel)
}

// Best returns DatapathSystem where it works, else DatapathNetdev.
func (d Datapath) Best() string {
	if d.Supports(DatapathSystem) {
		return DatapathSystem
	}
	return DatapathNetdev
}

// kernelDatapath looks up the family that the module registers. The lookup by name also makes the kernel load the module, if it is
// installed and the caller has CAP_NET_ADMIN.
func kernelDatapath() (bool, error) {
	_, err := netlink.GenlFamilyGet("ovs_datapath")
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, syscall.ENOENT):
		return false, nil
	default:
		return false, fmt.Errorf("ask the kernel for the netlink family ovs_datapath: %w", err)
	}
}
