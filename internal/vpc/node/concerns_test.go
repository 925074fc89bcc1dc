package node

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"weft.dev/weft/internal/link/conntrack"
	"weft.dev/weft/internal/nft"
	"weft.dev/weft/internal/vpc/gateway"
	"weft.dev/weft/internal/vpc/objects"
)

// rules are the rules of a gateway with the EIPs 192.0.2.1 to 192.0.2.5, each on its own: "NAME SOURCE EIP" of SNAT rules, and as well of
// floating IPs. A port forward is "NAME EIP PROTOCOL PORT INTERNAL".
type rules struct{ snats, fips, dnats []string }

// table returns the table of a gateway with the rules.
func (r *rules) table() map[nft.Key]nft.Item {
	in, second := &gateway.Input{}, int64(0)
	age := func(kind, name string) objects.Age {
		second++
		return objects.Age{Meta: objects.Meta{Kind: kind, Name: name, UID: fmt.Sprint(name, second)}}
	}
	for i := 1; i <= 5; i++ {
		address := fmt.Sprint("192.0.2.", i)
		in.EIPs = append(in.EIPs, objects.EIP{Age: age("IptablesEIP", address), Addr: netip.MustParseAddr(address)})
	}
	for _, rule := range r.snats {
		f := strings.Fields(rule)
		in.SNATs = append(in.SNATs, objects.SNAT{Age: age("IptablesSnatRule", f[0]), EIP: f[2], Prefix: netip.MustParsePrefix(f[1])})
	}
	for _, rule := range r.fips {
		f := strings.Fields(rule)
		in.FIPs = append(in.FIPs, objects.FIP{Age: age("IptablesFIPRule", f[0]), EIP: f[2], Internal: netip.MustParseAddr(f[1])})
	}
	for _, rule := range r.dnats {
		d, f := objects.DNAT{}, strings.Fields(rule)
		d.Age, d.EIP, d.Protocol, d.Internal = age("IptablesDnatRule", f[0]), f[1], f[2], netip.MustParseAddrPort(f[4])
		_, _ = fmt.Sscan(f[3], &d.Port)
		in.DNATs = append(in.DNATs, d)
	}
	return gateway.Compile(in).State.Items
}

// lookUp returns to what a table translates a connection, by a look at each element: its destination, and its source.
func lookUp(table map[nft.Key]nft.Item, c *conntrack.Connection) (destination, source string) {
	best := -1
	for _, item := range table {
		e, ok := item.(*nft.Element)
		if !ok || len(e.Value) == 0 || len(e.Match) == 0 {
			continue
		}
		bits := -1
		switch e.Set {
		case gateway.FloatingIn:
			if e.Match[0] == c.To.String() {
				destination = e.Value[0]
			}
		case gateway.Ports:
			protocol := map[uint8]string{unix.IPPROTO_TCP: "tcp", unix.IPPROTO_UDP: "udp"}[c.Protocol]
			if strings.Join(e.Match, " ") == fmt.Sprint(c.To, " ", protocol, " ", c.Port) {
				destination = fmt.Sprint(e.Value)
			}
		case gateway.FloatingOut:
			if e.Match[0] == c.From.String() {
				bits = 33 // before all SNAT rules
			}
		case gateway.Sources:
			if p, err := netip.ParsePrefix(e.Match[0]); err == nil && p.Contains(c.From) {
				bits = p.Bits()
			} else if e.Match[0] == c.From.String() {
				bits = 32
			}
		}
		if bits > best {
			source, best = e.Value[0], bits
		}
	}
	return destination, source
}

// A change of a gateway's rules concerns the connections that it translates otherwise after the change, and no others, however the elements
// are split and whatever the rules are called.
func TestConcerns(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		number := func(label string, from, to int) int { return rapid.IntRange(from, to).Draw(r, label) }
		inside := func(label string) string { return fmt.Sprint("10.0.0.", number(label, 0, 15)) }
		eip := func() string { return fmt.Sprint("192.0.2.", number("EIP", 1, 5)) }
		rule := [3]func() string{
			func() string {
				p := netip.PrefixFrom(netip.MustParseAddr(inside("source")), number("bits", 28, 32)).Masked()
				return fmt.Sprint(rapid.SampledFrom([]string{"a ", "b "}).Draw(r, "name"), p, " ", eip())
			},
			func() string { return fmt.Sprint("f", number("name", 1, 2), " ", inside("floating"), " ", eip()) },
			func() string {
				protocol := rapid.SampledFrom([]string{"tcp", "udp"}).Draw(r, "protocol")
				return fmt.Sprint("d ", eip(), " ", protocol, " ", number("port", 1, 2), " ", inside("forwarded"), ":1")
			},
		}
		before, after := &rules{}, &rules{}
		for kind, lists := range [3][2]*[]string{{&before.snats, &after.snats}, {&before.fips, &after.fips}, {&before.dnats, &after.dnats}} {
			for range number("rules", 0, 5) {
				one := rule[kind]()
				for i := range lists {
					if number("is there", 0, 3) > 0 {
						*lists[i] = append(*lists[i], one)
					}
				}
			}
		}
		was, is := before.table(), after.table()
		for _, odd := range []*nft.Element{ // not readable
			{Set: gateway.FloatingIn},
			{Set: gateway.FloatingIn, Match: []string{"?"}},
			{Set: gateway.Sources, Match: []string{"?"}},
			{Set: gateway.Ports, Match: []string{"192.0.2.1", "sctp", "1"}, Value: []string{"10.0.0.1", "1"}},
		} {
			is[odd.Key()] = odd
		}
		concerned := concerns(was, is)
		for range 20 {
			c := conntrack.Connection{
				Protocol: rapid.SampledFrom([]uint8{0, unix.IPPROTO_TCP, unix.IPPROTO_UDP}).Draw(r, "connection's protocol"),
				Port:     uint16(number("to port", 1, 2)),
				From:     netip.MustParseAddr(inside("from")),
				To:       netip.MustParseAddr(rapid.SampledFrom([]string{"198.51.100.1", eip()}).Draw(r, "to")),
			}
			c.By, c.Back = c.To, rapid.SampledFrom([]netip.Addr{c.From, netip.MustParseAddr(eip())}).Draw(r, "back")
			destination, source := lookUp(was, &c)
			newDestination, newSource := lookUp(is, &c)
			want := destination != newDestination || c.From != c.Back && source != newSource
			if have := concerned != nil && concerned(c); have != want {
				r.Fatalf("%+v, then %+v concern %+v: %t, want %t", before, after, c, have, want)
			}
		}
	})
}

// A rule for one pod beside that of its Subnet concerns the connections of this pod, whether it is added or deleted. Rules that are deleted and
// created again under other names concern none, and connection tracking is not read.
func TestConcernsOfOneRule(t *testing.T) {
	subnet := &rules{snats: []string{"subnet 10.0.1.0/24 192.0.2.1"}}
	beside := &rules{snats: []string{"subnet 10.0.1.0/24 192.0.2.1", "one 10.0.1.5/32 192.0.2.2"}}
	for name, pair := range map[string][2]*rules{"added": {subnet, beside}, "deleted": {beside, subnet}} {
		concerned := concerns(pair[0].table(), pair[1].table())
		for from, want := range map[string]bool{"10.0.1.5": true, "10.0.1.4": false, "10.0.1.77": false, "10.0.1.200": false, "10.0.2.5": false} {
			c := conntrack.Connection{
				Protocol: unix.IPPROTO_TCP, From: netip.MustParseAddr(from), To: netip.MustParseAddr("198.51.100.1"), Port: 443,
				By: netip.MustParseAddr("198.51.100.1"), Back: netip.MustParseAddr("192.0.2.1"),
			}
			if have := concerned(c); have != want {
				t.Errorf("%s: the connection of %s is removed: %t, want %t", name, from, have, want)
			}
		}
	}
	named := func(name string) map[nft.Key]nft.Item {
		return (&rules{
			snats: []string{name + " 10.0.1.0/24 192.0.2.1"},
			fips:  []string{name + " 10.0.1.6 192.0.2.2"},
			dnats: []string{name + " 192.0.2.3 tcp 80 10.0.1.7:80"},
		}).table()
	}
	if concerns(named("before"), named("after")) != nil {
		t.Error("renamed rules concern connections")
	}
}
