package handover

import (
	"errors"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"weft.dev/weft/internal/attach"
)

// filesOf returns files in a directory of the test, and the record of a dual-stack pod.
func filesOf(t *testing.T) (*Files, *attach.Record) {
	t.Helper()
	dir := t.TempDir()
	f := &Files{Network: "cbr0", DataDir: filepath.Join(dir, "networks"), CacheDir: filepath.Join(dir, "flannel"), Delegate: []byte(`{}`)}
	addresses := []netip.Prefix{netip.MustParsePrefix("10.244.3.9/24"), netip.MustParsePrefix("fd00:244:0:3::9/64")}
	return f, &attach.Record{ContainerID: "c1", IfName: "eth0", Addresses: addresses}
}

func reserved(t *testing.T, f *Files) int {
	t.Helper()
	given, err := f.Assigned()
	if err != nil {
		t.Fatal(err)
	}
	return len(given)
}

// TestOneAddressReserved: if host-local has assigned one of a pod's addresses, the other one is not reserved either: the pod gets other
// addresses, and nothing would ever release it.
func TestOneAddressReserved(t *testing.T) {
	f, rec := filesOf(t)
	other := *rec
	other.ContainerID, other.Addresses = "c2", rec.Addresses[1:]
	if err := f.Write(&other); err != nil {
		t.Fatal(err)
	}
	for _, content := range []string{reservation(&other), ""} { // host-local creates the file before it writes it
		if err := os.WriteFile(f.addressFile(rec.Addresses[1].Addr()), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := f.Write(rec); !errors.Is(err, ErrReserved) {
			t.Errorf("reserved twice: %v", err)
		}
		if got := reserved(t, f); got != 1 {
			t.Errorf("%d addresses are reserved, want that of the other pod", got)
		}
	}
}

// TestTornReservation: the file of an address that a killed agent has created and not written is removed with the attachment.
func TestTornReservation(t *testing.T) {
	f, rec := filesOf(t)
	if err := f.Write(rec); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(f.addressFile(rec.Addresses[0].Addr()), 0); err != nil {
		t.Fatal(err)
	}
	if err := f.Remove(rec); err != nil || reserved(t, f) != 0 {
		t.Errorf("%v, %d addresses are reserved", err, reserved(t, f))
	}
}

// TestFullDisk: a file that cannot be written does not reserve its address.
func TestFullDisk(t *testing.T) {
	f, rec := filesOf(t)
	signal.Ignore(unix.SIGXFSZ)
	defer signal.Reset(unix.SIGXFSZ)
	var usual unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &usual); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Max: usual.Max}); err != nil {
		t.Fatal(err)
	}
	err := f.Write(rec)
	if wrong := unix.Setrlimit(unix.RLIMIT_FSIZE, &usual); wrong != nil {
		t.Fatal(wrong)
	}
	if err == nil || reserved(t, f) != 0 {
		t.Errorf("%v, %d addresses are reserved", err, reserved(t, f))
	}
}
