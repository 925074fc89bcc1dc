package nft

import "testing"

// A reader that is slow loses detail and no change: at the end something is told.
func TestTellOverflow(t *testing.T) {
	m := &monitor{out: make(chan Drift, 3)}
	for range 100 {
		m.tell(Drift{Family: FamilyInet, Table: "a"})
	}
	all := false
	for len(m.out) > 0 {
		drift := <-m.out
		all = all || drift.All
	}
	if !all {
		t.Error("the loss was not told")
	}
}

func FuzzEvents(f *testing.F) {
	f.Add([]byte{28, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 6, 0, 1, 0, 'a', 0, 0, 0})
	f.Fuzz(func(_ *testing.T, datagram []byte) {
		m := &monitor{engine: &Engine{tables: map[tableKey]bool{}}, out: make(chan Drift, driftBuffer), touched: map[tableKey]*Drift{}}
		m.events(datagram)
	})
}
