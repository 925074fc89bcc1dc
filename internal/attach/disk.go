package attach

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// disk is what the store does to its directory. Names are plain file names in it.
type disk interface {
	// create makes a file that was not there.
	create(name string) (io.WriteCloser, error)
	rename(from, to string) error
	remove(name string) error
	// read returns a file's content.
	read(name string) ([]byte, error)
}

// rootDisk is the disk of an opened directory. It reaches nothing outside of it.
type rootDisk struct {
	root *os.Root
}

func (d rootDisk) create(name string) (io.WriteCloser, error) {
	return d.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
}

func (d rootDisk) rename(from, to string) error { return d.root.Rename(from, to) }

func (d rootDisk) remove(name string) error { return d.root.Remove(name) }

// read reads a regular file of at most MaxRecord bytes. It follows no link and waits for no pipe.
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

// errContent marks errors that lie in a file, as against those of reading it.
var errContent = errors.New("not an attachment record")

// errVoid marks a file of nothing, or of zeros: what a loss of power leaves of a record that the device had not got yet. No
// program's end does so. Its interface has gone with the power.
var errVoid = errors.New("it is empty")

// writeFile puts data under name in one step: whoever reads name finds what was there before, or all of data. What it leaves
// behind when it fails is at most a temporary file that the next Open removes.
//
// It does not wait for the device (fsync, 0.7 to 1.1 ms for each of an ADD's two). The kernel keeps what was written
// whatever becomes of the agent; what a loss of power takes, or gives back, is of a boot whose interfaces have gone with it.
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
