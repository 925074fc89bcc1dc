package subnetenv_test

import (
	"bytes"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"weft.dev/weft/internal/flannel/subnetenv"
)

var (
	v4   = []netip.Prefix{netip.MustParsePrefix("10.5.0.0/16")}
	v6   = []netip.Prefix{netip.MustParsePrefix("2001:cafe:42::/56")}
	sub4 = netip.MustParsePrefix("10.5.53.0/24")
	sub6 = netip.MustParsePrefix("2001:cafe:42:2f::/64")
)

const (
	text4    = "FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET=10.5.53.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"
	text6    = "FLANNEL_IPV6_NETWORK=2001:cafe:42::/56\nFLANNEL_IPV6_SUBNET=2001:cafe:42:2f::1/64\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=false\n"
	textDual = "FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET=10.5.53.1/24\nFLANNEL_IPV6_NETWORK=2001:cafe:42::/56\nFLANNEL_IPV6_SUBNET=2001:cafe:42:2f::1/64\nFLANNEL_MTU=1500\nFLANNEL_IPMASQ=true\n"
)

// TestFormat compares the bytes with those of flanneld v0.28.9.
func TestFormat(t *testing.T) {
	for _, c := range []struct {
		env  subnetenv.Env
		want string
	}{
		{subnetenv.Env{Networks: v4, Subnet: sub4, MTU: 1450, IPMasq: true}, text4},
		{subnetenv.Env{Networks6: v6, Subnet6: sub6, MTU: 1450}, text6},
		{subnetenv.Env{Networks: v4, Subnet: sub4, Networks6: v6, Subnet6: sub6, MTU: 1500, IPMasq: true}, textDual},
	} {
		if got := string(c.env.Format()); got != c.want {
			t.Errorf("got\n%swant\n%s", got, c.want)
		}
	}
}

func TestReadBack(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run", "subnet.env")
	env := subnetenv.Env{Networks: v4, Subnet: sub4, Networks6: v6, Subnet6: sub6, MTU: 1500, IPMasq: true}
	for range 2 { // the second replaces the first
		if err := subnetenv.Write(path, &env); err != nil {
			t.Fatal(err)
		}
	}
	got, err := subnetenv.Read(path)
	if err != nil || string(got.Format()) != textDual {
		t.Errorf("%+v, %v", got, err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if entries, _ := os.ReadDir(filepath.Dir(path)); len(entries) != 1 {
		t.Errorf("left beside the file: %v", entries)
	}
}

func TestParse(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"missing all", "", "missing FLANNEL_NETWORK or FLANNEL_IPV6_NETWORK, FLANNEL_SUBNET or FLANNEL_IPV6_SUBNET, FLANNEL_MTU, FLANNEL_IPMASQ"},
		{"missing MTU", strings.Replace(text4, "FLANNEL_MTU=1450\n", "", 1), "missing FLANNEL_MTU"},
		{"a key without =", "FLANNEL_NETWORK\n" + text4, "line 1: \"FLANNEL_NETWORK\": FLANNEL_NETWORK=VALUE is expected"},
		{"quotes", strings.Replace(text4, "10.5.53.1/24", `"10.5.53.1/24"`, 1), "line 2: FLANNEL_SUBNET:"},
		{"wrong family", strings.Replace(text4, "10.5.53.1/24", "2001::/64", 1), "is not an IPv4 range"},
		{"MTU", strings.Replace(text4, "1450", "1450x", 1), `FLANNEL_MTU: "1450x" is not an MTU`},
		{"other lines", "# made by hand\n\nFLANNELS=2\nX\n" + text4, ""},
		{"carriage returns", strings.ReplaceAll(text4, "\n", "\r\n"), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			e, err := subnetenv.Parse([]byte(c.text))
			if err == nil {
				err = e.Complete()
			}
			if c.want == "" && err == nil {
				return
			}
			if c.want == "" || err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q in it", err, c.want)
			}
		})
	}
	e, err := subnetenv.Parse([]byte("FLANNEL_NETWORK=10.5.0.0/16,10.6.1.1/16,10.5.0.0/16\nFLANNEL_IPMASQ=TRUE\n"))
	if err != nil || len(e.Networks) != 2 || e.Networks[1].String() != "10.6.0.0/16" || e.IPMasq {
		t.Errorf("%+v, %v", e, err)
	}
}

func TestReadErrorNamesTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "subnet.env")
	if _, err := subnetenv.Read(path); err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "flanneld writes it") {
		t.Error(err)
	}
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{text4, text6, textDual, "FLANNEL_MTU", "FLANNEL_NETWORK=,"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		e, err := subnetenv.Parse(text)
		if err != nil || e.Complete() != nil || (len(e.Networks) > 0) != e.Subnet.IsValid() || (len(e.Networks6) > 0) != e.Subnet6.IsValid() {
			return
		}
		again, err := subnetenv.Parse(e.Format())
		if err != nil || !bytes.Equal(again.Format(), e.Format()) {
			t.Errorf("%q becomes %q, %v", e.Format(), again.Format(), err)
		}
	})
}
