// Package sysctl sets the kernel's settings.
package sysctl

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/node"
)

// Dir is the directory of the kernel's settings. In a container it is read-only.
const Dir = "/proc/sys"

// Prepare makes the settings of the network writable. root is a directory where they are
// writable (Options.ProcSys). In a container, that is a mount of the node's, which is mounted over the container's own in this process's
// mount namespace. Its contents still depend on the network namespace of the thread that reads them.
func Prepare(root string) error {
	if root != Dir {
		from, to := filepath.Join(root, "net"), filepath.Join(Dir, "net")
		if err := unix.Mount(from, to, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mounting %s at %s, to set sysctls: %w", from, to, err)
		}
	}
	return nil
}

// Set sets sysctls, and returns the names of those that it changed.
func Set(sysctls []node.Sysctl) (put string, err error) {
	var names []string
	for _, s := range sysctls {
		path := filepath.Join(Dir, s.Path)
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
