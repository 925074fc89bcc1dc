package traffic

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// In runs f on a thread inside the network namespace at path.
func In(path string, f func() error) error { return in(path, f) }

// NewSpace makes a network namespace whose file is in dir, and returns the file's path and what removes it.
func NewSpace(dir string) (path string, remove func() error, err error) {
	path = filepath.Join(dir, "netns")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		return "", nil, err
	}
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread goes with its namespace
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			err = unix.Mount("/proc/thread-self/ns/net", path, "", unix.MS_BIND, "")
		}
		done <- err
	}()
	if err := <-done; err != nil {
		return "", nil, fmt.Errorf("making a network namespace: %w", err)
	}
	return path, func() error { return unix.Unmount(path, unix.MNT_DETACH) }, nil
}

// Neighbours returns the ARP cache of a namespace: MAC addresses by IPv4 address.
func Neighbours(path string) (map[netip.Addr]net.HardwareAddr, error) {
	neighbours := map[netip.Addr]net.HardwareAddr{}
	err := in(path, func() error {
		list, err := netlink.NeighList(0, netlink.FAMILY_V4)
		if err != nil {
			return err
		}
		for _, n := range list {
			if ip, ok := netip.AddrFromSlice(n.IP); ok && len(n.HardwareAddr) == 6 {
				neighbours[ip.Unmap()] = n.HardwareAddr
			}
		}
		return nil
	})
	return neighbours, err
}

// Addresses returns the IPv4 addresses of a namespace.
func Addresses(path string) ([]netip.Addr, error) {
	var addresses []netip.Addr
	err := in(path, func() error {
		list, err := netlink.AddrList(nil, netlink.FAMILY_V4)
		if err != nil {
			return err
		}
		for _, a := range list {
			if ip, ok := netip.AddrFromSlice(a.IP); ok {
				addresses = append(addresses, ip.Unmap())
			}
		}
		return nil
	})
	return addresses, err
}
