// Package portspace makes the network namespace with the veth peers of the pre-plugged ports. The namespace must be mounted, so that it
// outlives every process, and the whole node must see the mount. A mount made in a container is not visible on the node. So the plugin
// makes it, which the runtime executes on the node.
package portspace

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// lockSuffix is appended to the namespace's path for the name of the lock file. The process that makes the namespace holds the lock.
const lockSuffix = ".lock"

// Ensure makes the namespace at path unless it exists. It may be called concurrently by several processes. It completes the work of a
// killed one.
func Ensure(path string) error {
	if isThere(path) {
		return nil
	}
	lock, err := os.OpenFile(path+lockSuffix, os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("namespace of ports: %w", err)
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("namespace of ports: locking %s: %w", lock.Name(), err)
	}
	if isThere(path) { // made while this process waited for the lock
		return nil
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDONLY|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("namespace of ports: %w", err)
	}
	if err := errors.Join(file.Close(), mountNew(path)); err != nil {
		return fmt.Errorf("namespace of ports: %w", err)
	}
	return nil
}

// isThere reports whether a namespace is mounted at path.
func isThere(path string) bool {
	var fs unix.Statfs_t
	return unix.Statfs(path, &fs) == nil && fs.Type == unix.NSFS_MAGIC
}

// mountNew mounts a new network namespace at path, from a thread that ends with the call.
func mountNew(path string) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: no other goroutine may run in that namespace
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("unshare: %w", err)
			return
		}
		if err := unix.Mount("/proc/thread-self/ns/net", path, "", unix.MS_BIND, ""); err != nil {
			done <- fmt.Errorf("mounting at %s: %w", path, err)
			return
		}
		done <- nil
	}()
	return <-done
}

// Remove removes the namespace at path from the node, even if the caller does not see the mount: removing the file unmounts it everywhere
// (vfs_unlink in the kernel, since 3.18).
func Remove(path string) error {
	if err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("namespace of ports: unmounting %s: %w", path, err)
	}
	for _, name := range []string{path, path + lockSuffix} {
		if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("namespace of ports: %w", err)
		}
	}
	return nil
}
