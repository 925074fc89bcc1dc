package vm

import (
	"fmt"
	"io"
	"io/fs"
)

// archive writes an initramfs: the "newc" form of cpio (the kernel's Documentation/driver-api/early-userspace/ buffer-format.rst). Equal
// content gives equal bytes: it has no times and no owners. close returns the first error.
type archive struct {
	to      io.Writer
	inode   int
	written int
	err     error
}

const (
	typeDir  = 0o040000
	typeFile = 0o100000
	cpioEnd  = "TRAILER!!!"
	cpioPad  = 4
)

// dir adds a directory; its parent must exist.
func (a *archive) dir(name string) { a.entry(name, typeDir|0o755, nil) }

// file adds a file.
func (a *archive) file(name string, mode fs.FileMode, content []byte) {
	a.entry(name, typeFile|int(mode.Perm()), content)
}

// close ends the archive.
func (a *archive) close() error {
	a.inode = -1 // the trailer's is 0
	a.entry(cpioEnd, 0, nil)
	return a.err
}

// entry writes a header of 13 numbers of 8 hexadecimal digits, the name and the content, each padded to 4 bytes.
func (a *archive) entry(name string, mode int, content []byte) {
	a.inode++
	const links, none = 1, 0
	a.write(fmt.Appendf(nil, "070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%s\x00",
		a.inode, mode, none, none, links, none, len(content), none, none, none, none, len(name)+1, none, name))
	a.pad()
	a.write(content)
	a.pad()
}

func (a *archive) pad() { a.write(make([]byte, (cpioPad-a.written%cpioPad)%cpioPad)) }

func (a *archive) write(b []byte) {
	if a.err != nil {
		return
	}
	n, err := a.to.Write(b)
	a.written += n
	if err != nil {
		a.err = fmt.Errorf("write the initramfs: %w", err)
	}
}
