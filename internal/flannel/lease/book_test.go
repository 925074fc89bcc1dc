package lease_test

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"weft.dev/weft/internal/flannel/lease"
)

// bookOwn is this node, with both families.
func bookOwn() lease.Own {
	return lease.Own{
		Network: netip.MustParsePrefix("10.0.0.0/16"), Network6: netip.MustParsePrefix("fd00::/48"),
		Lease: lease.Lease{
			Subnet: netip.MustParsePrefix("10.0.0.0/24"), PublicIP: netip.MustParseAddr("192.0.2.200"), Data: lease.VXLAN{MAC: lease.MAC{2, 9}},
			Subnet6: netip.MustParsePrefix("fd00::/64"), PublicIP6: netip.MustParseAddr("2001::1"), Data6: lease.WireGuard{PublicKey: [32]byte{9}},
		},
	}
}

// anyClaim draws claims that often conflict, with each other and with bookOwn, or are refused regardless of others.
func anyClaim() *rapid.Generator[lease.Claim] {
	return rapid.Custom(func(t *rapid.T) lease.Claim {
		data := func() lease.Data {
			identity := rapid.ByteRange(0, 9).Draw(t, "identity")
			kinds := []lease.Data{nil, lease.VXLAN{MAC: lease.MAC{2, identity}}, lease.WireGuard{PublicKey: [32]byte{identity}}}
			return rapid.SampledFrom(kinds).Draw(t, "data")
		}
		var l lease.Lease
		if rapid.Bool().Draw(t, "v4") {
			address := netip.AddrFrom4([4]byte{10, 0, rapid.ByteRange(0, 40).Draw(t, "subnet"), rapid.Byte().Draw(t, "last")})
			l.Subnet = netip.PrefixFrom(address, rapid.SampledFrom([]int{15, 19, 23, 24, 24, 24, 25, 26}).Draw(t, "bits")).Masked()
			l.PublicIP, l.Data = netip.AddrFrom4([4]byte{192, 0, 2, rapid.ByteRange(190, 201).Draw(t, "public")}), data()
		}
		if rapid.Bool().Draw(t, "v6") {
			address := netip.AddrFrom16([16]byte{0: 0xfd, 7: rapid.ByteRange(0, 40).Draw(t, "subnet6"), 8: rapid.Byte().Draw(t, "last6")})
			l.Subnet6 = netip.PrefixFrom(address, rapid.SampledFrom([]int{47, 60, 64, 64, 64, 66}).Draw(t, "bits6")).Masked()
			l.PublicIP6, l.Data6 = netip.AddrFrom16([16]byte{0x20, 1, 15: rapid.ByteRange(1, 9).Draw(t, "public6")}), data()
		}
		return lease.Claim{Since: int64(rapid.IntRange(0, 5).Draw(t, "since")), Lease: l}
	})
}

// TestBookAgainstJudge: a book that follows changes accepts and refuses the same claims, and those that it judges with the same reasons, as
// Judge of all claims.
func TestBookAgainstJudge(t *testing.T) {
	own, claim, name := bookOwn(), anyClaim(), rapid.Map(rapid.IntRange(0, 15), strconv.Itoa)
	rapid.Check(t, func(t *rapid.T) {
		book, claims, accepted, refused := lease.NewBook(own), map[string]lease.Claim{}, map[string]lease.Lease{}, map[string]string{}
		for step := range rapid.IntRange(1, 20).Draw(t, "steps") {
			update := lease.Update{
				All: step == 0 || rapid.IntRange(0, 9).Draw(t, "all") == 0,
				Set: rapid.MapOfN(name, claim, 0, 6).Draw(t, "set"), Delete: rapid.SliceOfN(name, 0, 4).Draw(t, "delete"),
			}
			if update.All {
				clear(claims)
			}
			maps.Copy(claims, update.Set)
			for _, n := range update.Delete {
				delete(claims, n)
			}
			wantAccepted, errs := lease.Judge(claims, own, accepted)
			verdict := book.Update(update)
			follow(&verdict, accepted, refused)
			if diff := cmp.Diff(wantAccepted, accepted, values); diff != "" {
				t.Fatalf("step %d: accepted (-want +got):\n%s", step, diff)
			}
			if diff := cmp.Diff(wantAccepted, book.Accepted(), values); diff != "" {
				t.Fatalf("step %d: the book has (-want +got):\n%s", step, diff)
			}
			wantRefused := map[string]string{}
			for n, err := range errs {
				if wantRefused[n] = err.Error(); refused[n] != "" && !slices.Contains(verdict.Judged, n) {
					wantRefused[n] = refused[n] // it was judged before: of several reasons it may have another one
				}
			}
			if diff := cmp.Diff(wantRefused, refused); diff != "" {
				t.Fatalf("step %d: refused (-want +got):\n%s", step, diff)
			}
		}
	})
}

// follow keeps what a user of verdicts keeps.
func follow(verdict *lease.Verdict, accepted map[string]lease.Lease, refused map[string]string) {
	maps.Copy(accepted, verdict.Accepted)
	for _, n := range verdict.Gone {
		delete(accepted, n)
	}
	for _, n := range verdict.Judged {
		delete(refused, n)
		if err := verdict.Refused[n]; err != nil {
			refused[n] = err.Error()
		}
	}
}

// TestBookJudgesFew: of many claims, an update judges only those that it affects, also if there are hostile claims to everything.
func TestBookJudgesFew(t *testing.T) {
	at := func(subnet string, node byte) lease.Claim {
		return lease.Claim{Since: int64(node), Lease: lease.Lease{
			Subnet: netip.MustParsePrefix(subnet), PublicIP: netip.AddrFrom4([4]byte{192, 0, 2, node}), Data: lease.VXLAN{MAC: lease.MAC{2, node}},
		}}
	}
	book := lease.NewBook(lease.Own{Network: netip.MustParsePrefix("10.5.0.0/16"), Lease: at("10.5.200.0/24", 200).Lease})
	book.Update(lease.Update{Set: map[string]lease.Claim{"early": at("10.5.1.0/24", 1)}})
	if book.Known() || book.Has("early") {
		t.Error("a lease is accepted before all are known")
	}
	all := lease.Update{All: true, Set: map[string]lease.Claim{"everything": at("0.0.0.0/0", 250), "pods": at("10.0.0.0/8", 251), "network": at("10.5.0.0/16", 252)}}
	for node := byte(1); node < 100; node++ {
		all.Set[strconv.Itoa(int(node))] = at(fmt.Sprintf("10.5.%d.0/24", node), node)
	}
	if verdict := book.Update(all); !book.Known() || len(verdict.Accepted) != 99 || len(verdict.Judged) != len(all.Set) {
		t.Fatalf("%d accepted of %d judged", len(verdict.Accepted), len(verdict.Judged))
	}
	for _, c := range []struct {
		name         string
		update       lease.Update
		judged, gone []string
	}{
		{"one more", lease.Update{Set: map[string]lease.Claim{"100": at("10.5.100.0/24", 100)}}, []string{"100"}, nil},
		{"one moves to another's subnet", lease.Update{Set: map[string]lease.Claim{"100": at("10.5.7.128/25", 100)}}, []string{"100", "7"}, []string{"100"}},
		{"the other leaves", lease.Update{Delete: []string{"7"}}, []string{"100", "7"}, []string{"7"}},
		{"one claims everything again", lease.Update{Set: map[string]lease.Claim{"pods": at("10.4.0.0/15", 251)}}, []string{"pods"}, nil},
		{"one without a lease leaves", lease.Update{Delete: []string{"unknown"}}, []string{"unknown"}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			verdict := book.Update(c.update)
			slices.Sort(verdict.Judged)
			if !slices.Equal(verdict.Judged, c.judged) || !slices.Equal(verdict.Gone, c.gone) {
				t.Errorf("judged %v, gone %v; want %v, %v", verdict.Judged, verdict.Gone, c.judged, c.gone)
			}
		})
	}
	if !book.Has("100") || book.Has("7") || book.Has("pods") {
		t.Errorf("accepted: %v", book.Accepted())
	}
}

// TestBookKeepsWhatIsInUse: a node that publishes the tunnel address, or takes the subnet, of a younger one does not displace it. A daemon
// that has used neither uses the older one's.
func TestBookKeepsWhatIsInUse(t *testing.T) {
	at := func(subnet string, since, identity byte) lease.Claim {
		return lease.Claim{Since: int64(since), Lease: lease.Lease{
			Subnet: netip.MustParsePrefix(subnet), PublicIP: netip.AddrFrom4([4]byte{192, 0, 2, since}),
			Data: lease.VXLAN{MAC: lease.MAC{2, identity}},
		}}
	}
	for _, hostile := range []lease.Claim{at("10.0.1.0/24", 1, 8), at("10.0.2.0/24", 1, 7)} {
		both := map[string]lease.Claim{"old": hostile, "young": at("10.0.2.0/24", 2, 8)}
		book := lease.NewBook(bookOwn())
		book.Update(lease.Update{All: true, Set: map[string]lease.Claim{"old": at("10.0.1.0/24", 1, 7), "young": both["young"]}})
		for _, update := range []lease.Update{{Set: map[string]lease.Claim{"old": hostile}}, {All: true, Set: both}} {
			if book.Update(update); book.Has("old") || !book.Has("young") {
				t.Errorf("in use: %v", book.Accepted())
			}
		}
		book = lease.NewBook(bookOwn())
		if book.Update(lease.Update{All: true, Set: both}); !book.Has("old") || book.Has("young") {
			t.Errorf("of two that are new, in use: %v", book.Accepted())
		}
	}
}

// BenchmarkBook measures adding and removing one lease among 5,000.
func BenchmarkBook(b *testing.B) {
	claims := map[string]lease.Claim{}
	for i := range 5000 {
		high, low := byte(i/250), byte(i%250)
		claims[strconv.Itoa(i)] = lease.Claim{Since: int64(i), Lease: lease.Lease{
			Subnet: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 100 + high, low, 0}), 24), PublicIP: netip.AddrFrom4([4]byte{198, 18, high, low + 1}),
			Data: lease.VXLAN{VNI: 1, MAC: lease.MAC{2, 0, 0, 1, high, low}},
		}}
	}
	book := lease.NewBook(lease.Own{Network: netip.MustParsePrefix("10.0.0.0/8")})
	book.Update(lease.Update{All: true, Set: claims})
	one := map[string]lease.Claim{"4000": claims["4000"]}
	for b.Loop() {
		book.Update(lease.Update{Delete: []string{"4000"}})
		book.Update(lease.Update{Set: one})
	}
}
