package address_test

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"weft.dev/weft/internal/flannel/address"
)

func ranges() []netip.Prefix {
	return []netip.Prefix{netip.MustParsePrefix("10.244.3.0/24"), netip.MustParsePrefix("fd00:244:0:3::/64")}
}

func TestAsked(t *testing.T) {
	for text, want := range map[string]string{
		"10.244.3.7":                    "10.244.3.7 invalid IP",
		"fd00:244:0:3::7, 10.244.3.254": "10.244.3.254 fd00:244:0:3::7",
		" fd00:244:0:3:0:0:0:7 ":        "invalid IP fd00:244:0:3::7",
	} {
		asked, err := address.Asked(map[string]string{address.AnnotationIP: text}, ranges())
		if got := strings.Trim(fmt.Sprint(asked), "[]"); err != nil || got != want {
			t.Errorf("%q: %s, %v; want %s", text, got, err, want)
		}
	}
	if asked, err := address.Asked(nil, ranges()); err != nil || len(asked) != 2 || asked[0].IsValid() || asked[1].IsValid() {
		t.Errorf("without the annotation: %v, %v", asked, err)
	}
}

// TestBadValues: an error names the annotation and a valid value.
func TestBadValues(t *testing.T) {
	for text, why := range map[string]string{
		"":                       `"" is not an IP address`,
		"10.244.3":               `"10.244.3" is not an IP address`,
		"10.244.3.7/24":          `"10.244.3.7/24" is not an IP address`,
		"fe80::1%eth0":           `"fe80::1%eth0" is not an IP address`,
		"10.244.3.7,":            `"" is not an IP address`,
		"10.244.4.7":             `"10.244.4.7" is not an address for pods in 10.244.3.0/24 and fd00:244:0:3::/64`,
		"10.244.3.0":             `is not an address for pods`,
		"10.244.3.1":             `is not an address for pods`,
		"10.244.3.255":           `is not an address for pods`,
		"fd00:244:0:3::1":        `is not an address for pods`,
		"10.244.3.7,10.244.3.8":  `"10.244.3.8" is the second address in 10.244.3.0/24`,
		"::ffff:10.244.3.7":      `is not an address for pods`,
		strings.Repeat("1", 999): `" is not an IP address`,
	} {
		_, err := address.Asked(map[string]string{address.AnnotationIP: text}, ranges())
		if err == nil || !strings.Contains(err.Error(), why) || len(err.Error()) > 400 ||
			!strings.Contains(err.Error(), "annotation network.weft.dev/ip: ") || !strings.Contains(err.Error(), `such as "10.244.3.2,fd00:244:0:3::2"`) {
			t.Errorf("%.64q: %v", text, err)
		}
	}
	for _, text := range []string{"", "10", "-1m", "0s", "169h", "ten minutes", "1d"} {
		_, err := address.Duration(map[string]string{address.AnnotationSticky: text})
		if err == nil || !strings.Contains(err.Error(), "annotation network.weft.dev/sticky: ") || !strings.Contains(err.Error(), `at most 168h: write`) {
			t.Errorf("%q: %v", text, err)
		}
	}
	if d, err := address.Duration(map[string]string{address.AnnotationSticky: "168h"}); err != nil || d != address.Longest {
		t.Errorf("168h: %v, %v", d, err)
	}
	if d, err := address.Duration(nil); err != nil || d != 0 {
		t.Errorf("without the annotation: %v, %v", d, err)
	}
}

func FuzzAsked(f *testing.F) {
	f.Add("10.244.3.7,fd00::1")
	f.Fuzz(func(t *testing.T, text string) {
		asked, err := address.Asked(map[string]string{address.AnnotationIP: text}, ranges())
		if err != nil {
			return
		}
		for i, addr := range asked {
			if addr.IsValid() && !address.ForPod(ranges()[i], addr) {
				t.Errorf("%q: %s", text, addr)
			}
		}
	})
}

func addresses(texts ...string) (out []netip.Addr) {
	for _, text := range texts {
		out = append(out, netip.MustParseAddr(text))
	}
	return out
}

// TestBook: addresses are kept for one name until they expire, also by the next process.
func TestBook(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state", "addresses.json")
	now := time.Now()
	open := func() *address.Book {
		t.Helper()
		b, err := address.Open(path, func() time.Time { return now })
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	web, db := address.Name{Namespace: "shop", Pod: "web-0", Interface: "eth0"}, address.Name{Namespace: "shop", Pod: "db-0", Interface: "eth0"}
	b := open()
	for name, long := range map[address.Name]time.Duration{web: 10 * time.Minute, db: time.Minute} {
		own := addresses("10.244.3.7")
		if name == db {
			own = addresses("10.244.3.9", "fd00:244:0:3::9")
		}
		if err := b.Keep(name, own, long); err != nil {
			t.Fatal(err)
		}
	}
	for _, b := range []*address.Book{b, open()} {
		if got := b.For(db); !slices.Equal(got, addresses("10.244.3.9", "fd00:244:0:3::9")) {
			t.Errorf("kept for db-0: %v", got)
		}
		if of, kept := b.Holder(addresses("10.244.3.7")[0], db); !kept || of != web {
			t.Errorf("10.244.3.7 is kept for %v", of)
		}
		if of, kept := b.Holder(addresses("10.244.3.7")[0], web); kept {
			t.Errorf("10.244.3.7 is kept for %v, and not for web-0 alone", of)
		}
		if got := b.Kept(ranges()[0]); !slices.Equal(got, addresses("10.244.3.9", "10.244.3.7")) {
			t.Errorf("kept, in the order of their ends: %v", got)
		}
	}
	now = now.Add(time.Minute)
	for _, b := range []*address.Book{b, open()} {
		if b.For(db) != nil || b.For(web) == nil {
			t.Errorf("after a minute: kept for db-0: %v, for web-0: %v", b.For(db), b.For(web))
		}
	}
	for i := range 1100 {
		if err := b.Keep(address.Name{Namespace: "many", Pod: fmt.Sprint(i)}, addresses("10.244.3.8"), time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(b.Kept(ranges()[0])); n != 1024 {
		t.Errorf("%d entries", n)
	}
}

// TestBookUnreadable: a file that is not a Book's is reported, and replaced.
func TestBookUnreadable(t *testing.T) {
	path := filepath.Join(t.TempDir(), "addresses.json")
	for _, content := range []string{"", "{", `{"version":2}`, `{"version":1,"kept":[{"addresses":["x"]}]}`} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		b, err := address.Open(path, nil)
		if err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%q: %v", content, err)
		}
		if err := b.Keep(address.Name{Pod: "a"}, addresses("10.244.3.7"), time.Hour); err != nil {
			t.Error(err)
		}
		if again, err := address.Open(path, nil); err != nil || again.For(address.Name{Pod: "a"}) == nil {
			t.Errorf("%q: replaced: %v", content, err)
		}
	}
}
