//go:build real

package ovn_test

import (
	"fmt"
	"testing"

	"weft.dev/weft/internal/ovn"
	"weft.dev/weft/internal/ovn/ovntest"
)

// BenchmarkCommit measures the commit of one more switch with its ports, and that of its removal, beside few and beside many others.
func BenchmarkCommit(b *testing.B) {
	const ports = 48
	network := func(i int) rows {
		s := key(ovn.Switch, fmt.Sprint("s", i))
		all := rows{s: logicalSwitch(fmt.Sprint("s", i))}
		for p := range ports {
			name := fmt.Sprintf("s%d/%d", i, p)
			all[key(ovn.SwitchPort, name)] = port(s, name, fmt.Sprintf("0a:58:0a:00:01:%02x 10.0.1.%d", p, p))
		}
		return all
	}
	for _, others := range []int{10, 250} {
		b.Run(fmt.Sprintf("switches=%d", others), func(b *testing.B) {
			c := ovntest.New(b, nil)
			c.Start(ovntest.Northbound)
			e, err := ovn.Open(b.Context(), ovn.Config{Endpoints: []string{c.NB()}})
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(e.Close)
			if err := e.Lead(b.Context(), 1); err != nil {
				b.Fatal(err)
			}
			for i := range others {
				if err := e.Commit(b.Context(), ovn.Change{Set: network(i)}); err != nil {
					b.Fatal(err)
				}
			}
			if _, err := e.Read(b.Context()); err != nil {
				b.Fatal(err)
			}
			one := network(others)
			for b.Loop() {
				for _, change := range []ovn.Change{{Set: one}, {Delete: one}} {
					if err := e.Commit(b.Context(), change); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}
