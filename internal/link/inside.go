package link

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// procSys is the directory of settings such as net/ipv4/ip_forward; network settings are those of the calling thread's namespace.
const procSys = "/proc/sys"

// Inside runs work on a thread in the network namespace at the path. Announce and FlushMatching work on the namespace in which they are
// called.
func Inside(netns string, work func() error) error {
	namespace, err := openNamespace(netns)
	if err != nil {
		return err
	}
	defer namespace.close()
	return onThread(namespace, work)
}

// WriteSettings writes settings of the network namespace at the path, given by their paths under /proc/sys, if they differ.
func WriteSettings(netns string, settings map[string]string) error {
	return Inside(netns, func() error {
		for name, value := range settings {
			path := filepath.Join(procSys, name)
			have, err := os.ReadFile(path)
			if err == nil && strings.TrimSpace(string(have)) != value {
				err = os.WriteFile(path, []byte(value), 0)
			}
			if err != nil {
				return fmt.Errorf("setting %s to %s in %s: %w", name, value, netns, err)
			}
		}
		return nil
	})
}

// Connection is a connection of a network namespace, as connection tracking records it.
type Connection struct {
	// Protocol is the IP protocol's number.
	Protocol uint8
	// From and To are the addresses of its first packet, and Port the destination port.
	From, To netip.Addr
	Port     uint16
	// By is the source address of the answers, and Back their destination: they differ from To and From if the connection is translated.
	By, Back netip.Addr
}

// FlushMatching flushes the connections of this network namespace that match.
func FlushMatching(match func(Connection) bool) error {
	tracked, err := NewConntrack("")
	if err == nil {
		defer tracked.Close()
		_, _, err = tracked.flush(narrow{family: unix.AF_INET}, func(c *connection) bool {
			return match(Connection{Protocol: c.protocol, From: c.from, To: c.to, Port: c.port, By: c.by, Back: c.back})
		})
	}
	if err != nil {
		return fmt.Errorf("conntrack flush: %w", err)
	}
	return nil
}
