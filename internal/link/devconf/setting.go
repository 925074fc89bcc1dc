package devconf

import (
	"errors"
	"io/fs"

	"golang.org/x/sys/unix"
)

// setting is an open file of a setting, for system calls alone: package os first has the file's events reported to the runtime's poller, which
// takes longer than to read or write it. It belongs to the network namespace in which it was opened.
type setting struct {
	fd   int
	path string
}

// openSetting opens a setting of the calling thread's namespace. flags is unix.O_RDONLY, unix.O_WRONLY or unix.O_RDWR.
func openSetting(path string, flags int) (*setting, error) {
	var fd int
	err := again(func() (err error) {
		fd, err = unix.Open(path, flags|unix.O_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return &setting{fd: fd, path: path}, nil
}

func (s *setting) close() { unix.Close(s.fd) }

// longest is more than the length of a setting's text.
const longest = 64

// read returns the text of the setting.
func (s *setting) read() (string, error) {
	text := make([]byte, longest)
	size := 0
	err := again(func() (err error) {
		size, err = unix.Pread(s.fd, text, 0)
		return err
	})
	if err != nil {
		return "", &fs.PathError{Op: "read", Path: s.path, Err: err}
	}
	return string(text[:size]), nil
}

// write changes the setting. It writes at the beginning of the file: the kernel ignores all else.
func (s *setting) write(text string) error {
	err := again(func() error {
		_, err := unix.Pwrite(s.fd, []byte(text), 0)
		return err
	})
	if err != nil {
		return &fs.PathError{Op: "write", Path: s.path, Err: err}
	}
	return nil
}

// again repeats a call that a signal interrupts.
func again(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
