package netns

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// procSys is the directory of settings such as net/ipv4/ip_forward; network settings are those of the calling thread's namespace.
const procSys = "/proc/sys"

// Inside runs work on a thread in the network namespace at the path. Announce and FlushMatching work on the namespace in which they are
// called.
func Inside(netns string, work func() error) error {
	namespace, err := Open(netns)
	if err != nil {
		return err
	}
	defer namespace.Close()
	return OnThread(namespace, work)
}

// WriteSettings writes settings of the network namespace at the path, given by their paths under /proc/sys, if they differ. It
// writes them in the order of their paths: net/ipv4/ip_forward after those of devices, so that nothing is forwarded by other settings.
func WriteSettings(netns string, settings map[string]string) error {
	return Inside(netns, func() error {
		for _, name := range slices.Sorted(maps.Keys(settings)) {
			value := settings[name]
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
