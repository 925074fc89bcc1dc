// Package nftcli runs nft(8) in a network namespace, and reads its errors.
package nftcli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/nft"
	"weft.dev/weft/internal/nft/nfnetlink"
)

// Namespace is a network namespace whose nftables nft(8) reads and changes.
type Namespace struct {
	file *os.File
	// program is the path of nft.
	program string
}

// Open opens the namespace at path; "" is the calling thread's. It fails if there is no nft, or no such namespace.
func Open(path string) (n Namespace, err error) {
	if n.file, err = openNamespace(path); err != nil {
		return n, fmt.Errorf("nft engine: network namespace: %w", err)
	}
	if n.program, err = exec.LookPath("nft"); err != nil {
		return n, fmt.Errorf("nft engine: %w", errors.Join(err, n.file.Close()))
	}
	return n, nil
}

// Close releases the namespace.
func (n Namespace) Close() { _ = n.file.Close() } // an error has no consequence

// openNamespace opens the network namespace at path; "" is the calling thread's. It checks the path's file system first, so that it never
// opens a pipe or device.
func openNamespace(path string) (*os.File, error) {
	if path == "" {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		return os.Open("/proc/thread-self/ns/net")
	}
	look, err := os.OpenFile(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = look.Close() }() // nothing was written
	var stat unix.Statfs_t
	if err := unix.Fstatfs(int(look.Fd()), &stat); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if stat.Type != unix.NSFS_MAGIC {
		return nil, fmt.Errorf("%s is not a network namespace", path)
	}
	return os.Open("/proc/thread-self/fd/" + strconv.Itoa(int(look.Fd())))
}

// Inside runs work on a thread in the namespace; processes that it starts are in it too.
func (n Namespace) Inside(work func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		before, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			runtime.UnlockOSThread()
			done <- fmt.Errorf("opening the thread's network namespace: %w", err)
			return
		}
		defer func() { _ = before.Close() }() // nothing was written
		// Entering a namespace needs CAP_SYS_ADMIN, even for the thread's current one: without this check, a daemon in the node's namespace would
		// need it too.
		if sameFile(before, n.file) {
			done <- work()
			runtime.UnlockOSThread()
			return
		}
		if err = unix.Setns(int(n.file.Fd()), unix.CLONE_NEWNET); err == nil {
			err = work()
		}
		// A thread that cannot return stays locked, and ends with this goroutine.
		if unix.Setns(int(before.Fd()), unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread()
		}
		done <- err
	}()
	return <-done
}

// sameFile reports whether two files are one, such as the files of one namespace.
func sameFile(a, b *os.File) bool {
	one, err := a.Stat()
	other, wrong := b.Stat()
	return err == nil && wrong == nil && os.SameFile(one, other)
}

// Generation returns the namespace's generation of nftables, which every transaction increments by one.
func (n Namespace) Generation() (id uint32, err error) {
	err = n.Inside(func() (err error) {
		id, err = nfnetlink.Generation()
		return err
	})
	return id, err
}

// Run runs nft in the namespace, for reading. Changes are made by change.
func (n Namespace) Run(ctx context.Context, args ...string) ([]byte, error) {
	return n.RunStarted(ctx, (*exec.Cmd).Start, "", args...)
}

// RunStarted runs nft in the namespace, with an input. start starts the process.
func (n Namespace) RunStarted(ctx context.Context, start func(*exec.Cmd) error, input string, args ...string) ([]byte, error) {
	var out, words bytes.Buffer
	err := n.Inside(func() error {
		command := exec.CommandContext(ctx, n.program, args...)
		command.Stdin, command.Stdout, command.Stderr = strings.NewReader(input), &out, &words
		command.Env = append(os.Environ(), "LC_ALL=C")
		if err := start(command); err != nil {
			return err
		}
		return command.Wait()
	})
	if err == nil {
		return out.Bytes(), nil
	}
	var exit *exec.ExitError
	if ctx.Err() == nil && errors.As(err, &exit) {
		return nil, parseError(words.String())
	}
	return nil, fmt.Errorf("running nft: %w", errors.Join(err, ctx.Err()))
}

// Error is an error message of nft.
type Error struct {
	Words string
	// Line is the line of the input, from 1; 0 when unknown.
	Line int
}

//nolint:gochecknoglobals // a constant pattern
var errorPattern = regexp.MustCompile(`(?m)^(?:/dev/stdin:(\d+):\d+-\d+: )?Error: (.*)$`)

// parseError parses nft's messages: "/dev/stdin:2:17-23: Error: words", the line, and carets under it.
func parseError(text string) *Error {
	match := errorPattern.FindStringSubmatch(text)
	if match == nil {
		return &Error{Words: strings.TrimSpace(text)}
	}
	line, _ := strconv.Atoi(match[1])
	return &Error{Words: match[2], Line: line}
}

// Error implements error.
func (e *Error) Error() string { return "nft: " + e.Words }

// Unwrap lets errors.Is find nft.ErrRefused, and nft.ErrMissing if that is the reason.
func (e *Error) Unwrap() []error {
	if strings.Contains(e.Words, "No such file or directory") {
		return []error{nft.ErrRefused, nft.ErrMissing}
	}
	return []error{nft.ErrRefused}
}
