package host

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"weft.dev/weft/internal/cni"
	"weft.dev/weft/internal/goldentest"
	"weft.dev/weft/internal/hostport"
	"weft.dev/weft/internal/neutron/pipeline"
	"weft.dev/weft/internal/nft"
	"weft.dev/weft/internal/ovsdb"
)

// sample is the rules of a node with a pod that has host ports, and a Service.
func sample() map[nft.Key]nft.Item {
	all := Rules([]uint16{4789, 6081})
	maps.Copy(all, Published(&hostport.Published{Pod: "blue/a", Addresses: []netip.Addr{netip.MustParseAddr("10.244.0.5")}, Ports: []cni.HostPort{
		{Port: 8080, Protocol: "tcp", ContainerPort: 80},
		{Address: netip.MustParseAddr("192.0.2.1"), Port: 53, Protocol: "udp", ContainerPort: 5353},
	}}))
	maps.Copy(all, Service([]netip.Addr{netip.MustParseAddr("10.96.0.9"), netip.MustParseAddr("fd00::9")}))
	return all
}

func TestRules(t *testing.T) {
	var all []string
	for _, item := range sample() {
		all = append(all, item.String())
	}
	slices.Sort(all)
	goldentest.Compare(t, "testdata/rules.golden", strings.Join(all, "\n")+"\n")
}

// What the switch has of a former agent process is rejected, or is a slot that exists and a use that the next process writes in the same way.
func FuzzLeftOf(f *testing.F) {
	f.Add(patchNear+"5b1fdbd56f0b", uint16(firstPort), used)
	f.Add(patchNear+"5b1fdbd56f0b", uint16(firstPort+2), "2026-11-30T12:00:00Z")
	f.Add(patchNear+"5b1fdbd5-6f0b-4f0a", uint16(firstPort+1), "soon")
	f.Add("eth0", uint16(0), "")
	f.Fuzz(func(t *testing.T, name string, ofport uint16, mark string) {
		row := &ovsdb.Port{Bridge: pipeline.Bridge, Name: name, OFPort: ofport, ExternalIDs: map[string]string{markID: mark}}
		digits, left, ok := LeftOf(row)
		if !ok {
			return
		}
		if !left.Slot.Valid() || len(digits) != uuidDigits || patchNear+digits != name {
			t.Fatalf("%+v is slot %d of port %q", row, left.Slot, digits)
		}
		if Digits(digits) != digits {
			return // no port of Weft's has such a name
		}
		againDigits, again, ok := LeftOf(nearRow("owner", digits, left))
		if !ok || againDigits != digits || again.Slot != left.Slot || again.Mark.Used != left.Mark.Used || !left.Mark.Used && !again.Mark.Released.Equal(left.Mark.Released) {
			t.Errorf("%+v of port %q is read back as %+v of port %q", left, digits, again, againDigits)
		}
	})
}

// A device is a pre-plugged host veth only under the exact name that Weft gives one.
func FuzzPrepluggedSlot(f *testing.F) {
	f.Add("wp-3")
	f.Add("wp-03")
	f.Add("wp--1")
	f.Add("wp-+3")
	f.Fuzz(func(t *testing.T, name string) {
		if slot, is := PrepluggedSlot(name); is && (!slot.Valid() || slot.Preplugged() != name || len(name) > 15) {
			t.Errorf("%q is slot %d", name, slot)
		}
	})
}
