package handover

import (
	"errors"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/link/rtnetlink"
)

// Find returns the host veth of a pod's interface from the kernel, not from files: these may be a former pod's.
func Find(pod *Pod) (Port, error) {
	space, err := netns.GetFromPath(pod.Netns)
	if err != nil {
		return Port{}, fmt.Errorf("network namespace %s: %w", pod.Netns, err)
	}
	defer func() { _ = space.Close() }()
	inside, err := netlink.NewHandleAt(space, unix.NETLINK_ROUTE)
	if err != nil {
		return Port{}, fmt.Errorf("network namespace %s: %w", pod.Netns, err)
	}
	defer inside.Close()
	peer, err := inside.LinkByName(pod.IfName)
	if err != nil {
		return Port{}, fmt.Errorf("interface %s in %s: %w", pod.IfName, pod.Netns, err)
	}
	if peer.Type() != "veth" {
		return Port{}, fmt.Errorf("interface %s in %s is a %s, not a veth", pod.IfName, pod.Netns, peer.Type())
	}
	host, err := netlink.LinkByIndex(peer.Attrs().ParentIndex)
	if err != nil {
		return Port{}, fmt.Errorf("host veth of %s in %s: %w", pod.IfName, pod.Netns, err)
	}
	if host.Type() != "veth" || host.Attrs().ParentIndex != peer.Attrs().Index {
		return Port{}, fmt.Errorf("link %s is not the other end of %s in %s", host.Attrs().Name, pod.IfName, pod.Netns)
	}
	port := Port{Name: host.Attrs().Name, MAC: peer.Attrs().HardwareAddr, MTU: peer.Attrs().MTU}
	if index := host.Attrs().MasterIndex; index != 0 {
		bridge, err := netlink.LinkByIndex(index)
		if err != nil {
			return Port{}, fmt.Errorf("bridge of %s: %w", port.Name, err)
		}
		port.Bridge = bridge.Attrs().Name
	}
	return port, nil
}

// Ports returns the veths that are ports of a bridge; none if there is no bridge. kernel is a socket in its network namespace.
func Ports(kernel *netlink.Handle, bridge string) ([]netlink.Link, error) {
	of, err := kernel.LinkByName(bridge)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("bridge %s: %w", bridge, err)
	}
	links, err := rtnetlink.Dump(kernel.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list the ports of bridge %s: %w", bridge, err)
	}
	return slices.DeleteFunc(links, func(l netlink.Link) bool { return l.Attrs().MasterIndex != of.Attrs().Index || l.Type() != "veth" }), nil
}

// Close puts the veths that are ports of a bridge into a device group, and returns the names of those that were in another one. kernel is a
// socket in the bridge's network namespace.
func Close(kernel *netlink.Handle, bridge string, group uint32) ([]string, error) {
	links, err := Ports(kernel, bridge)
	if err != nil {
		return nil, err
	}
	var closed []string
	for _, l := range links {
		if l.Attrs().Group == group {
			continue
		}
		if err := kernel.LinkSetGroup(l, int(group)); err != nil && !errors.Is(err, unix.ENODEV) { // its pod has ended meanwhile
			return closed, fmt.Errorf("link %s: set its device group: %w", l.Attrs().Name, err)
		}
		closed = append(closed, l.Attrs().Name)
	}
	return closed, nil
}

// Mark sets a link's alias and device group; "" and 0 remove them.
func Mark(name, alias string, group uint32) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("link %s: %w", name, err)
	}
	if err := netlink.LinkSetAlias(link, alias); err != nil {
		return fmt.Errorf("link %s: set its alias: %w", name, err)
	}
	if err := netlink.LinkSetGroup(link, int(group)); err != nil {
		return fmt.Errorf("link %s: set its device group: %w", name, err)
	}
	return nil
}
