package attach

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// disk is the set of operations of the store on its directory. Names are plain file names.
type disk interface {
	// create makes a file, which must not exist.
	create(name string) (io.WriteCloser, error)
	rename(from, to string) error
	remove(name string) error
	// read returns a file's content.
	read(name string) ([]byte, error)
}

// rootDisk is the disk of an opened directory. It cannot access anything outside of it.
type rootDisk struct {
	root *os.Root
}

func (d rootDisk) create(name string) (io.WriteCloser, error) {
	return d.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
}

func (d rootDisk) rename(from, to string) error { return d.root.Rename(from, to) }

func (d rootDisk) remove(name string) error { return d.root.Remove(name) }

// read reads a regular file of at most MaxRecord bytes. It follows no symlink and does not block on a pipe.
func (d rootDisk) read(name string) ([]byte, error) {
	info, err := d.root.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%w: not a regular file", errContent)
	}
	file, err := d.root.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close() //nolint:errcheck // Nothing was written.
	data, err := io.ReadAll(io.LimitReader(file, MaxRecord+1))
	if err != nil {
		return nil, err
	}
	if len(data) > MaxRecord {
		return nil, fmt.Errorf("%w: larger than %d bytes", errContent, MaxRecord)
	}
	return data, nil
}

// errContent marks errors in a file's content, as opposed to errors of reading it.
var errContent = errors.New("not an attachment record")

// errVoid marks an empty file, or one of zeros. A loss of power leaves such a file in place of a record that was not yet on the device.
// The record's interface was lost with the power too, but only if the file is of a former boot: within a boot, such a file is damage like
// any other. The end of a program leaves none.
var errVoid = fmt.Errorf("%w: it is empty", errContent)

// writeFile puts data under name in one step: a reader of name gets either the former content or all of data. After a failure there may
// be a temporary file, which the next Open removes.
//
// It does not wait for the device (an fsync takes 0.7 to 1.1 ms, and each ADD would need two). The kernel keeps written data even if the
// agent dies. What a loss of power removes, or brings back, belongs to a boot whose interfaces no longer exist.
func writeFile(d disk, name, temporary string, data []byte) error {
	if err := writeTemporary(d, temporary, data); err != nil {
		return errors.Join(err, ignoreMissing(d.remove(temporary)))
	}
	if err := d.rename(temporary, name); err != nil {
		return errors.Join(err, ignoreMissing(d.remove(temporary)))
	}
	return nil
}

func writeTemporary(d disk, name string, data []byte) error {
	file, err := d.create(name)
	if err != nil {
		return err
	}
	if _, err := file.Write(data); err != nil {
		return errors.Join(err, file.Close())
	}
	return file.Close()
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
