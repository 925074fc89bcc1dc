//go:build real

package ovn

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"

	"weft.dev/weft/internal/ovn/ovntest"
)

// Whatever two engines commit, the rows that each of them knows, and renews row by row, are those of the whole copy.
func TestKnownAgreesWithCopy(t *testing.T) {
	central := ovntest.New(t, nil)
	central.Start(ovntest.Northbound)
	open := func() *Engine {
		e, err := Open(t.Context(), Config{Endpoints: []string{central.NB()}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(e.Close)
		if err := e.Lead(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		return e
	}
	engines := []*Engine{open(), open()}
	own := engines[0]
	if _, err := own.Read(t.Context()); err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(1, 2))
	for step := range 300 {
		by := engines[random.IntN(len(engines))]
		if err := by.Commit(t.Context(), randomChange(random)); err != nil {
			t.Fatalf("step %d: %v", step, err)
		}
		if random.IntN(50) == 0 { // the connection ends, and the rows of the next one are others
			central.Stop(ovntest.Northbound)
			central.Start(ovntest.Northbound)
		}
		if random.IntN(3) > 0 {
			continue
		}
		if _, err := engines[1].Read(t.Context()); err != nil {
			t.Fatal(err)
		}
		ovntest.Eventually(t, "the known rows are those of the copy", func() bool {
			s := own.keeper.Current()
			if s == nil || s.Sync(t.Context()) != nil {
				return false
			}
			own.drifted()
			own.commit.Lock()
			defer own.commit.Unlock()
			return maps.EqualFunc(newView(s).all(), own.known.rows, maps.Equal)
		})
	}
}

// randomChange sets and removes ports of two switches, which it always sets.
func randomChange(random *rand.Rand) Change {
	change := Change{Set: map[Key]Row{}, Delete: map[Key]Row{}}
	var switches []Key
	for i := range 2 {
		key := UUID(Switch, fmt.Sprint("s", i))
		switches = append(switches, key)
		change.Set[key] = Row{Owner: "Subnet/s", Text: map[string]string{"name": fmt.Sprint("s", i)}}
	}
	for i := range 5 {
		key, parent := UUID(SwitchPort, fmt.Sprint("p", i)), switches[random.IntN(len(switches))]
		switch random.IntN(3) {
		case 0:
			change.Delete[key] = Row{Parent: parent}
		case 1:
			change.Set[key] = Row{
				Owner: "Subnet/s", Parent: parent, Text: map[string]string{"name": fmt.Sprint("p", i)},
				Set: map[string][]string{"addresses": {fmt.Sprintf("0a:58:0a:00:01:%02x 10.0.1.%d", i+10*random.IntN(3), i)}},
			}
		}
	}
	return change
}
