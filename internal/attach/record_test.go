package attach

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// sample returns a complete record, different for every n.
func sample(n int) Record {
	key := Key{ContainerID: strings.Repeat("c", 1+n%7) + "-" + string(rune('a'+n%26)) + itoa(n), IfName: "eth0"}
	return Record{
		Version:       Version,
		Network:       "overlay",
		ContainerID:   key.ContainerID,
		IfName:        key.IfName,
		Netns:         "/var/run/netns/cni-" + itoa(n),
		PodNamespace:  "shop",
		PodName:       "web-" + itoa(n),
		PodUID:        "5f0c6a9e-" + itoa(n),
		Addresses:     []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 128, byte(n >> 8), byte(n)}).Next(), 14)},
		Gateway:       []netip.Addr{netip.MustParseAddr("10.128.0.1")},
		MAC:           "0a:58:0a:80:00:02",
		OFPort:        uint32(3 + n),           //nolint:gosec // Small.
		HostInterface: PortName(uint32(3 + n)), //nolint:gosec // Small.
		MTU:           1450,
		BootID:        "11111111-2222-3333-4444-555555555555",
		State:         Planned,
		Created:       time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC),
	}
}

func itoa(n int) string {
	const digits = "0123456789"
	if n < 10 {
		return digits[n : n+1]
	}
	return itoa(n/10) + itoa(n%10)
}

var compareNetip = cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }) //nolint:gochecknoglobals // Constant.

var compareAddr = cmp.Comparer(func(a, b netip.Addr) bool { return a == b }) //nolint:gochecknoglobals // Constant.

func TestRecordRoundTrip(t *testing.T) {
	rec := sample(1)
	rec.Addresses = append(rec.Addresses, netip.MustParsePrefix("fd00::2/64"))
	data, err := rec.encode()
	if err != nil {
		t.Fatal(err)
	}
	back, err := ParseRecord(data)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(rec, back, compareNetip, compareAddr); diff != "" {
		t.Errorf("record changed on its way to disk and back (-written +read):\n%s", diff)
	}
}

func TestRecordRefused(t *testing.T) {
	for name, change := range map[string]func(*Record){
		"version":            func(r *Record) { r.Version = 2 },
		"no container":       func(r *Record) { r.ContainerID = "" },
		"container path":     func(r *Record) { r.ContainerID = "../../etc/passwd" },
		"container newline":  func(r *Record) { r.ContainerID = "abc\n" },
		"container NUL":      func(r *Record) { r.ContainerID = "abc\x00" },
		"container long":     func(r *Record) { r.ContainerID = strings.Repeat("a", 129) },
		"interface long":     func(r *Record) { r.IfName = "abcdefghijklmnop" },
		"interface slash":    func(r *Record) { r.IfName = "e/0" },
		"interface dots":     func(r *Record) { r.IfName = ".." },
		"interface space":    func(r *Record) { r.IfName = "eth 0" },
		"network":            func(r *Record) { r.Network = "a/b" },
		"netns relative":     func(r *Record) { r.Netns = "proc/1/ns/net" },
		"netns detour":       func(r *Record) { r.Netns = "/var/run/netns/../x" },
		"pod name":           func(r *Record) { r.PodName = "a b" },
		"address unset":      func(r *Record) { r.Addresses = []netip.Prefix{{}} },
		"address multicast":  func(r *Record) { r.Addresses = []netip.Prefix{netip.MustParsePrefix("224.0.0.1/24")} },
		"address twice":      func(r *Record) { r.Addresses = append(r.Addresses, r.Addresses[0]) },
		"address 4in6":       func(r *Record) { r.Addresses = []netip.Prefix{netip.MustParsePrefix("::ffff:10.0.0.1/120")} },
		"gateways":           func(r *Record) { r.Gateway = append(r.Gateway, netip.MustParseAddr("10.0.0.9")) },
		"gateway unset":      func(r *Record) { r.Gateway = []netip.Addr{{}} },
		"mac":                func(r *Record) { r.MAC = "0a:58" },
		"mac multicast":      func(r *Record) { r.MAC = "01:00:5e:00:00:01" },
		"mac upper case":     func(r *Record) { r.MAC = "0A:58:0a:80:00:02" },
		"host interface":     func(r *Record) { r.HostInterface = "weft/../x" },
		"mtu small":          func(r *Record) { r.MTU = 67 },
		"mtu negative":       func(r *Record) { r.MTU = -1 },
		"boot id":            func(r *Record) { r.BootID = "" },
		"state":              func(r *Record) { r.State = "open" },
		"created":            func(r *Record) { r.Created = time.Time{} },
		"state of a newline": func(r *Record) { r.State = "planned\n" },
	} {
		t.Run(name, func(t *testing.T) {
			rec := sample(1)
			change(&rec)
			if err := rec.Validate(); err == nil {
				t.Errorf("accepted: %+v", rec)
			}
		})
	}
}

func TestParseRecordRefused(t *testing.T) {
	rec := sample(1)
	good, err := rec.encode()
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string]string{
		"empty":          "",
		"null":           "null",
		"array":          "[]",
		"object":         "{}",
		"unknown field":  strings.Replace(string(good), `"mtu"`, `"mtuu"`, 1),
		"added field":    strings.Replace(string(good), "{", `{"colour": "red",`, 1),
		"two objects":    string(good) + string(good),
		"trailing":       string(good) + "x",
		"newer version":  strings.Replace(string(good), `"version": 1`, `"version": 2`, 1),
		"zeros at end":   string(good) + "\x00\x00",
		"zeros":          strings.Repeat("\x00", len(good)),
		"bad address":    strings.Replace(string(good), "10.128.", "10.999.", 1),
		"number as text": strings.Replace(string(good), `"mtu": 1450`, `"mtu": "1450"`, 1),
	} {
		t.Run(name, func(t *testing.T) {
			if rec, err := ParseRecord([]byte(data)); err == nil {
				t.Errorf("accepted: %+v", rec)
			}
		})
	}
}

// TestTruncated cuts a record at every byte: the rest is refused, or is the same record (if only its last newline is missing). It is
// never another record.
func TestTruncated(t *testing.T) {
	rec := sample(1)
	data, err := rec.encode()
	if err != nil {
		t.Fatal(err)
	}
	for n := range len(data) {
		back, err := ParseRecord(data[:n])
		switch {
		case n == len(data)-1:
			if diff := cmp.Diff(rec, back, compareNetip, compareAddr); diff != "" {
				t.Errorf("without the last newline (-written +read):\n%s", diff)
			}
		case err == nil:
			t.Errorf("the first %d of %d bytes are taken for %+v", n, len(data), back)
		}
	}
}

// Every port has a name that the kernel accepts.
func TestPortName(t *testing.T) {
	for ofport, want := range map[uint32]string{3: "weft-p3", 65279: "weft-p65279"} {
		if name := PortName(ofport); name != want || !isInterfaceName(name) {
			t.Errorf("port %d: %q, want %q", ofport, name, want)
		}
	}
}

// FuzzParseRecord: every accepted record is valid, and is the same after writing and reading it.
func FuzzParseRecord(f *testing.F) {
	for n := range 3 {
		rec := sample(n)
		data, err := rec.encode()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
		f.Add(data[:len(data)/2])
	}
	f.Add([]byte(`{"version":1,"version":2}`))
	f.Add([]byte(`{"VERSION":1,"containerid":"a"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		rec, err := ParseRecord(data)
		if err != nil {
			return
		}
		if err := rec.Validate(); err != nil {
			t.Fatalf("accepted and not valid: %v", err)
		}
		again, err := rec.encode()
		if err != nil {
			t.Fatal(err)
		}
		back, err := ParseRecord(again)
		if err != nil {
			t.Fatalf("its own encoding is refused: %v", err)
		}
		if diff := cmp.Diff(rec, back, compareNetip, compareAddr); diff != "" {
			t.Fatal(diff)
		}
	})
}

func sampleKey(n int) Key {
	rec := sample(n)
	return rec.Key()
}
