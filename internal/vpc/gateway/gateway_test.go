package gateway_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"weft.dev/weft/internal/goldentest"
	"weft.dev/weft/internal/nft"
	"weft.dev/weft/internal/vpc/gateway"
	"weft.dev/weft/internal/vpc/objects"
)

func addr(s string) netip.Addr     { return netip.MustParseAddr(s) }
func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

// made is the age of an object: the second of its creation.
func made(kind, name string, second int) objects.Age {
	return objects.Age{Meta: objects.Meta{Kind: kind, Name: name, UID: kind + name}, Created: time.Unix(int64(second), 0)}
}

func eip(name, address string) objects.EIP {
	return objects.EIP{Age: made("IptablesEIP", name, 0), Gateway: "gw1", Addr: addr(address)}
}

func snat(name, eip, p string, second int) objects.SNAT {
	return objects.SNAT{Age: made("IptablesSnatRule", name, second), EIP: eip, Prefix: prefix(p)}
}

func fip(name, eip, internal string, second int) objects.FIP {
	return objects.FIP{Age: made("IptablesFIPRule", name, second), EIP: eip, Internal: addr(internal)}
}

func dnat(name, eip, external, internal string, second int) objects.DNAT {
	var port uint16
	var protocol string
	if _, err := fmt.Sscanf(external, "%d/%s", &port, &protocol); err != nil {
		panic(err)
	}
	return objects.DNAT{
		Age: made("IptablesDnatRule", name, second), EIP: eip, Protocol: protocol, Port: port, Internal: netip.MustParseAddrPort(internal),
	}
}

func subnet(name, p string) objects.Subnet {
	return objects.Subnet{Meta: objects.Meta{Kind: "Subnet", Name: name, UID: name}, VPC: "vpc1", Prefix: prefix(p), Gateway: prefix(p).Addr().Next()}
}

func input() *gateway.Input {
	net1 := subnet("net1", "10.0.1.0/24")
	return &gateway.Input{
		Gateway: objects.Gateway{
			Meta: objects.Meta{Kind: "VpcNatGateway", Name: "gw1", UID: "gw1"}, VPC: "vpc1", Subnet: "net1", LanIP: addr("10.0.1.254"),
		},
		Own: addr("192.168.100.221"), Subnet: net1, Subnets: []objects.Subnet{net1, subnet("net2", "10.0.2.0/24")},
		External: subnet("external", "192.168.100.0/24"),
		VPC: objects.VPC{
			Meta: objects.Meta{Kind: "Vpc", Name: "vpc1", UID: "vpc1"},
			Routes: []objects.Route{
				{Prefix: prefix("0.0.0.0/0"), NextHop: addr("10.0.1.254")},
				{Prefix: prefix("10.9.0.0/16"), NextHop: addr("10.0.2.3")},
				{Prefix: prefix("172.16.0.0/12"), NextHop: addr("10.0.1.254")},
			},
			Peerings: []objects.Peering{{Remote: "vpc2", Local: prefix("169.254.0.1/30")}},
		},
		EIPs: []objects.EIP{eip("eip1", "192.168.100.230"), eip("eip2", "192.168.100.231"), eip("eip3", "192.168.100.232")},
		SNATs: []objects.SNAT{
			snat("all", "eip1", "10.0.0.0/16", 1), snat("net2", "eip2", "10.0.2.0/24", 2), snat("typo", "eip1", "10.1.1.0/24", 3),
			snat("twin", "eip2", "10.0.0.0/16", 4), snat("elsewhere", "of-another-gateway", "10.0.3.0/24", 5),
		},
		DNATs: []objects.DNAT{
			dnat("web", "eip2", "8080/tcp", "10.0.2.13:7000", 3), dnat("dns", "eip2", "8080/udp", "10.0.2.13:53", 3),
			dnat("twice", "eip2", "8080/tcp", "10.0.2.14:7000", 4), dnat("on-fip", "eip3", "80/tcp", "10.0.2.14:7000", 9),
		},
		FIPs: []objects.FIP{
			fip("fip01", "eip3", "10.0.1.12", 5), fip("second", "eip3", "10.0.1.13", 6), fip("on-dnat", "eip2", "10.0.1.14", 9),
		},
	}
}

func render(r *gateway.Result) string {
	var lines []string
	for _, item := range r.State.Items {
		lines = append(lines, item.String())
	}
	for _, a := range r.State.Addresses {
		lines = append(lines, "address "+a.String())
	}
	for _, route := range r.State.Routes {
		lines = append(lines, fmt.Sprintf("route %+v", route))
	}
	for name, value := range r.State.Sysctls {
		lines = append(lines, "sysctl "+name+"="+value)
	}
	for owner, problem := range r.Problems {
		lines = append(lines, "problem of "+owner+": "+problem.Error())
	}
	for name, uses := range r.Uses {
		lines = append(lines, fmt.Sprintf("use of %s: %v", name, uses))
	}
	slices.Sort(lines)
	return strings.Join(append(lines, fmt.Sprintf("unmatched %v", r.Unmatched)), "\n") + "\n"
}

func TestGolden(t *testing.T) {
	result := gateway.Compile(input())
	have, file := render(&result), "testdata/full.golden"
	goldentest.Compare(t, file, have)
}

// The same objects result in the same state and the same hash in every order, and another state in another hash.
func TestOrder(t *testing.T) {
	first := gateway.Compile(input())
	want, hash := render(&first), first.State.Hash()
	rapid.Check(t, func(r *rapid.T) {
		in := input()
		in.EIPs = rapid.Permutation(in.EIPs).Draw(r, "EIPs")
		in.SNATs = rapid.Permutation(in.SNATs).Draw(r, "SNATs")
		in.DNATs = rapid.Permutation(in.DNATs).Draw(r, "DNATs")
		in.FIPs = rapid.Permutation(in.FIPs).Draw(r, "FIPs")
		in.Subnets = rapid.Permutation(in.Subnets).Draw(r, "subnets")
		in.VPC.Routes = rapid.Permutation(in.VPC.Routes).Draw(r, "routes")
		result := gateway.Compile(in)
		if render(&result) != want || result.State.Hash() != hash {
			r.Fatalf("another order gives another state:\n%s", render(&result))
		}
	})
	in := input()
	in.FIPs[0].Internal = addr("10.0.1.99")
	if other := gateway.Compile(in); other.State.Hash() == hash {
		t.Error("another floating IP, and the same hash")
	}
}

// Every source gets the EIP of the longest prefix, and the intervals do not overlap.
func TestLongestPrefix(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		in := input()
		in.DNATs, in.FIPs, in.SNATs = nil, nil, nil
		draw := rapid.Custom(func(r *rapid.T) netip.Addr {
			return netip.AddrFrom4([4]byte{10, 0, 0, byte(rapid.IntRange(0, 63).Draw(r, "byte"))})
		})
		seen := map[netip.Prefix]bool{}
		for i := range rapid.IntRange(0, 6).Draw(r, "rules") {
			p := netip.PrefixFrom(draw.Draw(r, "prefix"), rapid.SampledFrom([]int{0, 8, 26, 28, 30, 31, 32}).Draw(r, "bits")).Masked()
			if !seen[p] {
				in.SNATs = append(in.SNATs, snat(fmt.Sprint("r", i), rapid.SampledFrom([]string{"eip1", "eip2", "eip3"}).Draw(r, "eip"), p.String(), i))
			}
			seen[p] = true
		}
		source, want, best := draw.Draw(r, "source"), "none", -1
		for _, rule := range in.SNATs {
			if rule.Prefix.Contains(source) && rule.Prefix.Bits() > best {
				best, want = rule.Prefix.Bits(), rule.EIP
			}
		}
		have := "none"
		result := gateway.Compile(in)
		for _, item := range result.State.Items {
			e, ok := item.(*nft.Element)
			if !ok || e.Set != "sources" {
				continue
			}
			text := e.Match[0]
			if !strings.Contains(text, "/") {
				text += "/32"
			}
			if prefix(text).Contains(source) {
				if have != "none" {
					r.Fatalf("two intervals hold %s", source)
				}
				have = map[string]string{"192.168.100.230": "eip1", "192.168.100.231": "eip2", "192.168.100.232": "eip3"}[e.Value[0]]
			}
		}
		if have != want {
			r.Fatalf("%s is translated to %s, want %s", source, have, want)
		}
	})
}

// The hash of what is required changes with each EIP and rule, and with nothing else, and is not that of a state.
func TestRequirementsHash(t *testing.T) {
	in := input()
	seen := map[string]string{gateway.Require(in).Hash(): "the input"}
	same := *in
	same.External.Gateway = netip.MustParseAddr("192.168.100.9")
	if seen[gateway.Require(&same).Hash()] == "" {
		t.Error("the hash depends on the gateway of the external Subnet")
	}
	state := gateway.Compile(in).State
	differs := func(what, hash string) {
		if other := seen[hash]; other != "" {
			t.Errorf("%s: the hash of %s", what, other)
		}
		seen[hash] = what
	}
	differs("the state", state.Hash())
	for what, change := range map[string]func(in *gateway.Input){
		"without its own address": func(in *gateway.Input) { in.Own = netip.Addr{} },
		"without an EIP":          func(in *gateway.Input) { in.EIPs = in.EIPs[1:] },
		"without a floating IP":   func(in *gateway.Input) { in.FIPs = in.FIPs[1:] },
		"without a port forward":  func(in *gateway.Input) { in.DNATs = in.DNATs[1:] },
		"without an SNAT rule":    func(in *gateway.Input) { in.SNATs = in.SNATs[1:] },
		"with a redundant SNAT rule": func(in *gateway.Input) {
			in.SNATs = append(slices.Clone(in.SNATs), snat("more", in.SNATs[0].EIP, in.SNATs[0].Prefix.Addr().String()+"/32", 99))
		},
	} {
		changed := *in
		change(&changed)
		required := gateway.Require(&changed)
		differs(what, required.Hash())
		if in.EIPs[0].Name != changed.EIPs[0].Name && required.Address(in.EIPs[0].Addr) || !required.Address(in.EIPs[1].Addr) {
			t.Errorf("%s: the addresses are %+v", what, changed.EIPs)
		}
	}
}

// Required with the remaining rules accepts the elements that these rules created, and no element that only deleted rules created.
func TestRequired(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		in := input()
		for i := range rapid.IntRange(0, 6).Draw(r, "more SNAT rules") {
			p := prefix(fmt.Sprintf("10.0.%d.%d/%d", rapid.IntRange(0, 3).Draw(r, "third"), rapid.IntRange(0, 255).Draw(r, "fourth"), rapid.IntRange(16, 32).Draw(r, "bits")))
			in.SNATs = append(in.SNATs, snat(fmt.Sprint("more", i), rapid.SampledFrom([]string{"eip1", "eip2"}).Draw(r, "eip"), p.Masked().String(), 10+i))
		}
		deleted := func(objects.Age) bool { return rapid.Bool().Draw(r, "deleted") }
		left := *in
		left.SNATs = slices.DeleteFunc(slices.Clone(in.SNATs), func(s objects.SNAT) bool { return deleted(s.Age) })
		left.DNATs = slices.DeleteFunc(slices.Clone(in.DNATs), func(d objects.DNAT) bool { return deleted(d.Age) })
		left.FIPs = slices.DeleteFunc(slices.Clone(in.FIPs), func(f objects.FIP) bool { return deleted(f.Age) })
		owners, sources := map[string]bool{}, map[string][]netip.Prefix{}
		for _, f := range left.FIPs {
			owners["IptablesFIPRule/"+f.Name] = true
		}
		for _, d := range left.DNATs {
			owners["IptablesDnatRule/"+d.Name] = true
		}
		for _, s := range left.SNATs {
			for _, e := range in.EIPs {
				if e.Name == s.EIP {
					sources[e.Addr.String()] = append(sources[e.Addr.String()], s.Prefix)
				}
			}
		}
		required := gateway.Require(&left)
		for _, item := range gateway.Compile(in).State.Items {
			e, ok := item.(*nft.Element)
			if !ok {
				continue
			}
			want := owners[e.Owner]
			switch e.Set {
			case gateway.Sources:
				piece, ok := gateway.Source(e)
				want = ok && slices.ContainsFunc(sources[e.Value[0]], func(p netip.Prefix) bool { return p.Bits() <= piece.Bits() && p.Overlaps(piece) })
			case gateway.FloatingIn, gateway.FloatingOut, gateway.Ports:
			default:
				want = true
			}
			if required.Element(e) != want {
				r.Fatalf("%s: required is %v, want %v", e, required.Element(e), want)
			}
		}
	})
}

// A gateway that cannot be compiled keeps the elements of rules that were deleted and created again under other names.
func TestRequiredOfRenamedRules(t *testing.T) {
	in := input()
	items := gateway.Compile(in).State.Items
	for i := range in.SNATs {
		in.SNATs[i].Name = "renamed-" + in.SNATs[i].Name
	}
	for i := range in.DNATs {
		in.DNATs[i].Name = "renamed-" + in.DNATs[i].Name
	}
	for i := range in.FIPs {
		in.FIPs[i].Name = "renamed-" + in.FIPs[i].Name
	}
	required := gateway.Require(in)
	for _, item := range items {
		if e, ok := item.(*nft.Element); ok && !required.Element(e) {
			t.Errorf("%s is not required", e)
		}
	}
}
