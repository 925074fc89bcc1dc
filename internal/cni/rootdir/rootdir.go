// Package rootdir opens directories that only their owner may enter, and that one process at a time may use: those of the agent's socket
// and records.
package rootdir

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// Mode is the mode of such a directory.
const Mode os.FileMode = 0o700

// ErrInUse is returned by Open if another process uses the directory.
var ErrInUse = errors.New("another process uses the directory")

// Open creates dir if it is missing, and missing parents with mode 0755. It sets the mode of dir to 0700. It takes an exclusive lock on
// dir, which lasts until the returned file is closed or the process ends. The file is the directory.
//
// Open refuses a dir that is a symbolic link or belongs to another user. It also refuses one that other users could replace: its parent
// belongs to neither root nor this user, or is writable for others without being sticky.
func Open(dir string) (*os.File, error) {
	file, err := openDir(dir)
	if err != nil {
		return nil, fmt.Errorf("directory %s: %w", dir, err)
	}
	if err := secure(file); err != nil {
		return nil, errors.Join(fmt.Errorf("directory %s: %w", dir, err), file.Close())
	}
	return file, nil
}

// Lock takes the lock of Open on an existing directory, and does not change it. If there is none, it returns fs.ErrNotExist.
func Lock(dir string) (*os.File, error) {
	file, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, fmt.Errorf("directory %s: %w", dir, err)
	}
	if err := lock(file); err != nil {
		return nil, errors.Join(fmt.Errorf("directory %s: %w", dir, err), file.Close())
	}
	return file, nil
}

func openDir(dir string) (*os.File, error) {
	if !filepath.IsAbs(dir) {
		return nil, errors.New("not an absolute path")
	}
	parent := filepath.Dir(dir)
	if err := os.MkdirAll(parent, 0o755); err != nil { //nolint:gosec // Parents are like /run: for all to pass.
		return nil, err
	}
	if err := checkParent(parent); err != nil {
		return nil, err
	}
	if err := os.Mkdir(dir, Mode); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, err
	}
	return os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
}

func checkParent(parent string) error {
	info, err := os.Stat(parent)
	if err != nil {
		return err
	}
	if uid := owner(info); uid != 0 && uid != uint32(os.Geteuid()) { //nolint:gosec // Uids fit.
		return fmt.Errorf("its parent belongs to user %d", uid)
	}
	if info.Mode().Perm()&0o022 != 0 && info.Mode()&os.ModeSticky == 0 {
		return fmt.Errorf("others may replace it: its parent has mode %#o", info.Mode().Perm())
	}
	return nil
}

func secure(file *os.File) error {
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if uid := owner(info); uid != uint32(os.Geteuid()) { //nolint:gosec // Uids fit.
		return fmt.Errorf("belongs to user %d and not to %d", uid, os.Geteuid())
	}
	if err := file.Chmod(Mode); err != nil {
		return err
	}
	return lock(file)
}

func lock(file *os.File) error {
	err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB) //nolint:gosec // File descriptors fit.
	if errors.Is(err, unix.EWOULDBLOCK) {
		return ErrInUse
	}
	return err
}

// owner returns the uid of a file's owner.
func owner(info os.FileInfo) uint32 {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return ^uint32(0)
	}
	return stat.Uid
}
