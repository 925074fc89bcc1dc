package agent

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/node"
)

// procSys is the directory of the kernel's settings. In a container it is read-only.
const procSys = "/proc/sys"

// prepareSysctls makes the settings of the network writable, and sets those that the whole node needs. root is a directory where they are
// writable (Options.ProcSys). In a container, that is a mount of the node's, which is mounted over the container's own in this process's
// mount namespace. Its contents still depend on the network namespace of the thread that reads them.
func prepareSysctls(root string) error {
	if root != procSys {
		from, to := filepath.Join(root, "net"), filepath.Join(procSys, "net")
		if err := unix.Mount(from, to, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mounting %s at %s, to set sysctls: %w", from, to, err)
		}
	}
	_, err := setSysctls()
	return err
}

// setSysctls sets what the whole node needs, and returns the names of the settings that it changed.
func setSysctls() (put string, err error) { return setAll(overlayCare().Sysctls) }

// setAll sets sysctls, and returns the names of those that it changed.
func setAll(sysctls []node.Sysctl) (put string, err error) {
	var names []string
	for _, s := range sysctls {
		path := filepath.Join(procSys, s.Path)
		if have, err := os.ReadFile(path); err == nil && string(bytes.TrimSpace(have)) == s.Value {
			continue
		}
		if err := os.WriteFile(path, []byte(s.Value), 0); err != nil {
			return "", fmt.Errorf("setting sysctl %s to %s: %w", s.Path, s.Value, err)
		}
		names = append(names, strings.ReplaceAll(s.Path, "/", "."))
	}
	return strings.Join(names, ", "), nil
}
