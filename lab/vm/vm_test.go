package vm

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// entries reads an archive back: names, and content after the mode.
func entries(t *testing.T, raw []byte) map[string]string {
	t.Helper()
	const header, magic = 110, "070701"
	found := map[string]string{}
	padded := func(n int) int { return (n + cpioPad - 1) / cpioPad * cpioPad }
	for len(raw) > 0 {
		if len(raw) < header || string(raw[:len(magic)]) != magic {
			t.Fatalf("no header at %q", raw[:min(len(raw), header)])
		}
		number := func(i int) int {
			n, err := strconv.ParseInt(string(raw[6+8*i:14+8*i]), 16, 64)
			if err != nil {
				t.Fatal(err)
			}
			return int(n)
		}
		size, begin := number(6), padded(header+number(11))
		name := strings.TrimSuffix(string(raw[header:header+number(11)]), "\x00")
		found[name] = fmt.Sprintf("%o %s", number(1), raw[begin:begin+size])
		raw = raw[padded(begin+size):]
	}
	return found
}

func TestArchive(t *testing.T) {
	large := bytes.Repeat([]byte("b"), 4097)
	var first, second bytes.Buffer
	for _, to := range []*bytes.Buffer{&first, &second} {
		a := &archive{to: to}
		a.file("init", 0o755, []byte("first program"))
		a.dir("modules")
		a.file("modules/00-a.ko", 0o644, nil)
		a.file("modules/01-b.ko", 0o640, large)
		if err := a.close(); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(first.Bytes(), second.Bytes()) {
		t.Error("equal content gives different archives")
	}
	want := map[string]string{
		"init": "100755 first program", "modules": "40755 ", "modules/00-a.ko": "100644 ",
		"modules/01-b.ko": "100640 " + string(large), cpioEnd: "0 ",
	}
	if have := entries(t, first.Bytes()); !maps.Equal(have, want) {
		t.Errorf("the archive has %v, not %v", have, want)
	}
}

type fullDisk struct{ room int }

var errFull = errors.New("full")

func (d *fullDisk) Write(b []byte) (int, error) {
	n := min(len(b), d.room)
	d.room -= n
	if n < len(b) {
		return n, errFull
	}
	return n, nil
}

func TestArchiveThatCannotBeWritten(t *testing.T) {
	a := &archive{to: &fullDisk{room: 300}}
	a.file("init", 0o755, make([]byte, 1000))
	a.dir("modules")
	if err := a.close(); !errors.Is(err, errFull) {
		t.Errorf("close: %v, not %v", err, errFull)
	}
}

func TestDependency(t *testing.T) {
	name, err := dependency("linux-image-amd64\n  Depends: linux-image-6.1.0-56-amd64\n")
	if err != nil || name != "linux-image-6.1.0-56-amd64" {
		t.Errorf("%q, %v", name, err)
	}
	if _, err := dependency("linux-image-amd64\n"); !errors.Is(err, ErrKernel) {
		t.Errorf("a package that stands for nothing: %v, not %v", err, ErrKernel)
	}
}

func TestPlaceOf(t *testing.T) {
	const module = "lib/modules/6.1.0-56-amd64/"
	for name, want := range map[string]string{
		"boot/vmlinuz-6.1.0-56-amd64":                          "vmlinuz",
		"boot/config-6.1.0-56-amd64":                           "",
		module + "modules.builtin":                             module + "modules.builtin",
		module + "kernel/net/openvswitch/openvswitch.ko":       module + "kernel/net/openvswitch/openvswitch.ko",
		module + "kernel/drivers/net/vxlan/vxlan.ko":           module + "kernel/drivers/net/vxlan/vxlan.ko",
		module + "kernel/drivers/net/ethernet/intel/e1000e.ko": "",
		module + "kernel/drivers/gpu/drm/drm.ko":               "",
		module + "kernel/drivers/network.ko":                   "",
		"lib/modules/../../../etc/modules.x":                   "",
		"usr/share/doc/linux-image/copyright":                  "",
	} {
		if have, ok := placeOf(filepath.ToSlash(name)); ok != (want != "") || ok && have != want {
			t.Errorf("%s: %q, %t; not %q", name, have, ok, want)
		}
	}
}

func TestLoadOrder(t *testing.T) {
	const dep = `kernel/fs/9p/9p.ko: kernel/net/9p/9pnet.ko kernel/fs/fscache/fscache.ko kernel/fs/netfs/netfs.ko
kernel/net/9p/9pnet.ko:
kernel/fs/fscache/fscache.ko: kernel/fs/netfs/netfs.ko
kernel/fs/netfs/netfs.ko:
kernel/net/9p/9pnet_virtio.ko: kernel/net/9p/9pnet.ko
kernel/net/openvswitch/vport-vxlan.ko:
`
	order, err := loadOrder(dep, []string{"9p", "9pnet_virtio", "vport_vxlan"})
	if err != nil {
		t.Fatal(err)
	}
	for i, file := range order {
		for line := range strings.Lines(dep) {
			of, needs, _ := strings.Cut(strings.TrimSpace(line), ":")
			for need := range strings.FieldsSeq(needs) {
				if of == file && !slices.Contains(order[:i], need) {
					t.Errorf("%s comes before %s, which it needs", file, need)
				}
			}
		}
	}
	if len(order) != 6 {
		t.Errorf("%d files, not 6: %v", len(order), order)
	}
	if _, err := loadOrder(dep, []string{"nothing"}); !errors.Is(err, ErrModule) {
		t.Errorf("a module that is not there: %v, not %v", err, ErrModule)
	}
}
