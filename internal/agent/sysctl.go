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

// procSys is where the kernel's settings are; a container's own is read-only.
const procSys = "/proc/sys"

// prepareSysctls makes the settings of the network writable and sets what the node needs as a whole. root is where they
// can be written (Options.ProcSys): in a container that is a mount of the node's, which is put over the container's own
// in this process's mount namespace. What is in it still follows the network namespace of the thread that looks.
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

// setSysctls sets what the node needs as a whole, and returns the names of those that were otherwise.
func setSysctls() (put string, err error) { return setAll(overlayCare().Sysctls) }

// setAll sets sysctls, and returns the names of those that were otherwise.
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
