package ovs

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"weft.dev/weft/internal/neutron/plug"
)

// podInterface is the name of a pod's interface.
const podInterface = "eth0"

// podSide creates the pod's interface with the port's addresses, and the other end on the Linux bridge. kernel reports that the kernel's
// datapath forwards.
func podSide(h *netlink.Handle, names chain, pod plug.Pod, kernel bool) error {
	space, err := netns.GetFromPath(pod.NetNS)
	if err != nil {
		return fmt.Errorf("open the network namespace of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	defer func() { _ = space.Close() }()
	if err := foreign(space); err != nil {
		return fmt.Errorf("network namespace of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	inside, err := netlink.NewHandleAt(space)
	if err != nil {
		return fmt.Errorf("open netlink in the network namespace of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	defer inside.Close()
	there, err := connected(h, inside, names, pod.Port.MAC)
	if err != nil {
		return err
	}
	if !there {
		if err := connect(h, inside, space, names, pod.Port); err != nil {
			return err
		}
	}
	if err := noIPv6(names.tap); err != nil {
		return err
	}
	tap, err := h.LinkByName(names.tap)
	if err != nil {
		return fmt.Errorf("find %s: %w", names.tap, err)
	}
	bridge, err := h.LinkByName(names.bridge)
	if err != nil {
		return fmt.Errorf("find %s: %w", names.bridge, err)
	}
	if err := h.LinkSetMaster(tap, bridge); err != nil {
		return fmt.Errorf("put %s into %s: %w", names.tap, names.bridge, err)
	}
	if err := errors.Join(up(h, names.tap), address(inside, pod.Port)); err != nil {
		return err
	}
	if kernel {
		return nil
	}
	return finishChecksums(pod.NetNS)
}

// errHost is returned for a sandbox without a network namespace of its own.
var errHost = errors.New("it is the host's: the pod uses the host's network, and its eth0 may be the host's own")

// foreign checks that a network namespace is not the host's.
func foreign(space netns.NsHandle) error {
	own, err := netns.Get()
	if err != nil {
		return fmt.Errorf("open the host's network namespace: %w", err)
	}
	defer func() { _ = own.Close() }()
	if own.Equal(space) {
		return errHost
	}
	return nil
}

// finishChecksums turns transmit offloads of the pod's interface off: the userspace datapath forwards frames as they are, and the receiver
// drops frames with incomplete checksums.
func finishChecksums(path string) error {
	return ns.WithNetNSPath(path, func(ns.NetNS) error {
		tool, err := ethtool.NewEthtool()
		if err != nil {
			return fmt.Errorf("open ethtool: %w", err)
		}
		defer tool.Close()
		have, err := tool.Features(podInterface)
		if err != nil {
			return fmt.Errorf("read the offloads of the pod's interface: %w", err)
		}
		change := map[string]bool{}
		for name, on := range have {
			if on && (strings.HasPrefix(name, "tx-checksum-") || strings.HasSuffix(name, "-segmentation")) {
				change[name] = false
			}
		}
		if err := tool.Change(podInterface, change); err != nil {
			return fmt.Errorf("turn the offloads of the pod's interface off: %w", err)
		}
		return nil
	})
}

// connected reports whether the pod has this port's interface already.
func connected(h, inside *netlink.Handle, names chain, mac net.HardwareAddr) (bool, error) {
	if _, err := h.LinkByName(names.tap); err != nil {
		return false, nil //nolint:nilerr // there is none
	}
	link, err := inside.LinkByName(podInterface)
	if err == nil && link.Attrs().HardwareAddr.String() == mac.String() {
		return true, nil
	}
	return false, remove(h, names.tap) // of a former sandbox of the pod
}

// connect creates the pair, one end in the pod. An interface that the pod's runtime created is replaced.
func connect(h, inside *netlink.Handle, space netns.NsHandle, names chain, port plug.Port) error {
	if err := remove(inside, podInterface); err != nil {
		return fmt.Errorf("replace the pod's interface: %w", err)
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = names.tap, port.MTU
	pair := &netlink.Veth{LinkAttrs: attrs, PeerName: podInterface, PeerNamespace: netlink.NsFd(space), PeerHardwareAddr: port.MAC}
	if err := h.LinkAdd(pair); err != nil {
		return fmt.Errorf("make %s and the pod's interface: %w", names.tap, err)
	}
	return nil
}

// address configures the pod's interface with the port's addresses.
func address(inside *netlink.Handle, port plug.Port) error {
	link, err := inside.LinkByName(podInterface)
	if err != nil {
		return fmt.Errorf("find the pod's interface: %w", err)
	}
	if port.MTU > 0 {
		if err := inside.LinkSetMTU(link, port.MTU); err != nil {
			return fmt.Errorf("set the MTU of the pod's interface to %d: %w", port.MTU, err)
		}
	}
	if err := inside.LinkSetUp(link); err != nil {
		return fmt.Errorf("set the pod's interface up: %w", err)
	}
	for _, a := range port.Addrs {
		if err := inside.AddrReplace(link, &netlink.Addr{IPNet: ipNet(a)}); err != nil {
			return fmt.Errorf("give the pod's interface %s: %w", a, err)
		}
	}
	if !port.Gateway.IsValid() {
		return nil
	}
	route := &netlink.Route{LinkIndex: link.Attrs().Index, Gw: port.Gateway.AsSlice()}
	if err := inside.RouteReplace(route); err != nil {
		return fmt.Errorf("route the pod's traffic to %s: %w", port.Gateway, err)
	}
	return nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
