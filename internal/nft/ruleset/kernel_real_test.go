//go:build real

package ruleset

import (
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"weft.dev/weft/internal/link/nstest"
	"weft.dev/weft/internal/nft"
	"weft.dev/weft/internal/nft/nfnetlink"
)

// Of the types of Weft's tables: each key and value, single, as a prefix, and as a range.
const manySets = `
table inet t {
  set a4 { type ipv4_addr; elements = { 10.0.0.1 comment "one", 10.0.0.2 } }
  set a6 { type ipv6_addr; size 9; elements = { fd00::1 } }
  set n4 { type ipv4_addr; flags interval; elements = { 0.0.0.0/8, 10.0.0.0/9 comment "half", 10.128.0.0-10.128.0.5, 10.129.0.0, 192.0.2.7-192.0.2.8, 255.255.255.255 } }
  set n6 { type ipv6_addr; flags interval; elements = { ::/1, 8000::/2, fd00::1-fd00::3, ffff::/16 } }
  set s { type inet_service; flags interval; elements = { 1-1023, 8080, 65535 } }
  set empty { type ipv4_addr . inet_proto . inet_service; flags constant; }
  set ports { type ipv4_addr . inet_proto . inet_service; elements = { 192.0.2.1 . tcp . 80 comment "web", 192.0.2.1 . sctp . 7 } }
  set ranges { type ipv4_addr . inet_service; flags interval; elements = { 10.0.0.0/24 . 1-9, 10.0.1.1 . 5, 10.0.2.1-10.0.2.4 . 6 } }
  set links { type ifname; elements = { "eth0", "veth0123456789a" } }
  set seen { type ipv4_addr; flags dynamic,timeout; timeout 5m; size 100; elements = { 10.0.0.9 } }
  set short { type ipv4_addr; flags timeout; elements = { 10.0.0.9 timeout 1h } }
  map macs { type ether_addr : mark; elements = { 02:00:00:00:00:01 comment "egress" : 0x12345678 } }
  map marks { type mark : ipv4_addr; elements = { 7 : 192.0.2.9 } }
  map forwards { type ipv4_addr . inet_proto . inet_service : ipv4_addr . inet_service; elements = { 192.0.2.1 . udp . 53 : 10.0.0.1 . 5353 } }
  map sources { type ipv4_addr : ipv4_addr; flags interval; elements = { 10.0.0.0/23 comment "s" : 192.0.2.1, 10.1.0.1 : 192.0.2.2 } }
  chain c { type filter hook ingress device "lo" priority 0; policy drop; ip saddr { 10.0.0.1, 10.0.0.2 } counter accept; }
  chain d { }
}
`

// What is decoded from netlink is what nft lists. Of a table with another type, nft lists the objects.
func TestRealDecodedAsListed(t *testing.T) {
	netns := nstest.New(t)
	script := func(text string) {
		t.Helper()
		nstest.Do(t, netns, func() error {
			program := exec.Command("nft", "-f", "-")
			program.Stdin = strings.NewReader(text)
			if out, err := program.CombinedOutput(); err != nil {
				return fmt.Errorf("nft: %w: %s", err, out)
			}
			return nil
		})
	}
	script(manySets)
	e, err := NewEngine(Options{Netns: netns})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	table := tableKey{nft.FamilyInet, "t"}
	compare := func(what string, decoded *listing) {
		t.Helper()
		structured, err := e.ask(t.Context(), "-j", "list", "table", "inet", "t")
		if err != nil {
			t.Fatal(err)
		}
		listed := &listing{table: table, kernel: decoded.kernel, blocks: decoded.blocks}
		if listed.objects, err = parseObjects(structured); err != nil {
			t.Fatal(err)
		}
		have, want := lines(decoded), lines(listed)
		if len(want) < 40 || !slices.Equal(have, want) {
			t.Errorf("%s: decoded is\n%s\nlisted is\n%s", what, strings.Join(have, "\n"), strings.Join(want, "\n"))
		}
	}
	decoded := &listing{table: table}
	if err := e.namespace.Inside(decoded.read); err != nil {
		t.Fatal(err)
	}
	compare("by netlink", decoded)
	for _, more := range []string{
		`add map inet t verdicts { type ipv4_addr : verdict; }; add element inet t verdicts { 10.0.0.1 : accept };`, "add set inet t kinds { type icmp_type; elements = { echo-request }; };",
	} {
		script(more)
		if err := e.namespace.Inside((&listing{table: table}).read); !errors.Is(err, nfnetlink.ErrUndecoded) {
			t.Errorf("%s: %v, want %v", more, err, nfnetlink.ErrUndecoded)
		}
		found, err := e.list(t.Context(), table)
		if err != nil {
			t.Fatal(err)
		}
		compare(more, found)
	}
	if err := e.namespace.Inside((&listing{table: tableKey{nft.FamilyInet, "none"}}).read); !errors.Is(err, nft.ErrMissing) {
		t.Errorf("a table that does not exist: %v", err)
	}
}

func lines(l *listing) []string {
	var all []string
	for item := range maps.Values(l.items()) {
		all = append(all, item.String())
	}
	slices.Sort(all)
	return all
}
