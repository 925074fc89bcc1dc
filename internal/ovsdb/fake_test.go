package ovsdb_test

import (
	"maps"
	"slices"
	"testing"

	"weft.dev/weft/internal/ovsdb"
)

func TestFake(t *testing.T) {
	suite(t, func(t *testing.T) *bench {
		f := ovsdb.NewFake("br0", "br1")
		t.Cleanup(f.Close)
		return &bench{
			engine: f,
			link: func(_ *testing.T, names ...string) {
				for _, name := range names {
					f.Refuse(name, "")
				}
			},
			noLink: func(_ *testing.T, name string) {
				f.Refuse(name, "could not open network device "+name+" (No such device)")
			},
			foreign: func(_ *testing.T, bridge, port string) {
				f.Hand(set(&ovsdb.Bridge{Name: bridge}, &ovsdb.Port{Bridge: bridge, Name: port}))
			},
			stray: func(_ *testing.T, bridge, port string) {
				f.Hand(set(&ovsdb.Port{Bridge: bridge, Name: port, Type: ovsdb.TypeInternal}))
			},
			remove: func(_ *testing.T, port string) { f.Hand(del(&ovsdb.Port{Name: port})) },
			ports:  func(_ *testing.T, bridge string) []string { return fakePorts(f, bridge) },
		}
	})
}

func fakePorts(f *ovsdb.Fake, bridge string) []string {
	return slices.Sorted(maps.Keys(f.Ports(bridge)))
}
