package netns

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/link"
)

// nsGetType is NS_GET_NSTYPE of linux/nsfs.h: _IO(0xb7, 0x3).
const nsGetType = 0xb703

// Namespace is an open network namespace.
type Namespace struct {
	path string
	// File is the open namespace.
	File *os.File
}

// Open opens the network namespace at path. It opens nothing but namespaces for reading: it first looks the path up with O_PATH,
// which has no side effects on devices, pipes and sockets, and checks the file system.
func Open(path string) (*Namespace, error) {
	look, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return nil, fmt.Errorf("namespace %s: %w", path, link.ErrNoNamespace)
	}
	if err != nil {
		return nil, fmt.Errorf("namespace %s: %w", path, err)
	}
	defer unix.Close(look)
	var stat unix.Statfs_t
	if err := unix.Fstatfs(look, &stat); err != nil {
		return nil, fmt.Errorf("namespace %s: %w", path, err)
	}
	if stat.Type != unix.NSFS_MAGIC {
		// A namespace whose mount was unmounted leaves an empty file: the namespace does not exist any more.
		var file unix.Stat_t
		if unix.Fstat(look, &file) == nil && file.Mode&unix.S_IFMT == unix.S_IFREG && file.Size == 0 {
			return nil, fmt.Errorf("namespace %s: an empty file: %w", path, errors.Join(link.ErrNoNamespace, link.ErrNotNamespace))
		}
		return nil, fmt.Errorf("namespace %s: %w", path, link.ErrNotNamespace)
	}
	file, err := os.OpenFile("/proc/thread-self/fd/"+strconv.Itoa(look), os.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("namespace %s: %w", path, err)
	}
	if kind, err := unix.IoctlRetInt(int(file.Fd()), nsGetType); err != nil || kind != unix.CLONE_NEWNET {
		file.Close()
		return nil, fmt.Errorf("namespace %s: of another type: %w", path, link.ErrNotNamespace)
	}
	return &Namespace{path: path, File: file}, nil
}

// Home opens the namespace of the calling goroutine's thread.
func Home() (*Namespace, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	file, err := os.Open(threadsPath)
	if err != nil {
		return nil, fmt.Errorf("opening the own network namespace: %w", err)
	}
	return &Namespace{File: file}, nil
}

// FD is the descriptor of the open namespace.
func (n *Namespace) FD() int { return int(n.File.Fd()) }

// Close closes the file. The namespace stays.
func (n *Namespace) Close() { n.File.Close() }

// Enter moves the calling thread, which must be locked, into the namespace.
func (n *Namespace) Enter() error {
	if err := unix.Setns(int(n.File.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("entering namespace %s: %w", n.path, err)
	}
	return nil
}

// OnThread runs work on a thread of its own, starting in home. Work may enter other namespaces; if the thread cannot return to its
// namespace, it ends and is not used for other goroutines.
func OnThread(home *Namespace, work func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		// Entering a namespace needs CAP_SYS_ADMIN, even for the thread's current one: without this check, a daemon in the node's namespace would
		// need it too.
		if home.isThreads() {
			err := work()
			if home.isThreads() || home.Enter() == nil {
				runtime.UnlockOSThread()
			}
			done <- err
			return
		}
		before, err := os.Open(threadsPath)
		if err != nil {
			runtime.UnlockOSThread()
			done <- fmt.Errorf("opening the thread's network namespace: %w", err)
			return
		}
		defer before.Close()
		if err = home.Enter(); err == nil {
			err = work()
		}
		if unix.Setns(int(before.Fd()), unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread()
		}
		done <- err
	}()
	return <-done
}

// threadsPath is the network namespace of the calling thread.
const threadsPath = "/proc/thread-self/ns/net"

// isThreads reports whether the namespace is that of the calling thread.
func (n *Namespace) isThreads() bool {
	var own, threads unix.Stat_t
	err := errors.Join(unix.Fstat(n.FD(), &own), unix.Stat(threadsPath, &threads))
	return err == nil && own.Dev == threads.Dev && own.Ino == threads.Ino
}
