package link

import "testing"

// A reader that is slow loses detail and no change: at the end All is told.
func TestTellOverflow(t *testing.T) {
	w := &watcher{out: make(chan Drift, 3)}
	for range 100 {
		w.tell(Drift{Device: "tun0", Kind: KindDevice})
	}
	all := false
	for len(w.out) > 0 {
		drift := <-w.out
		all = all || drift.All
	}
	if !all {
		t.Error("the loss was not told")
	}
}

func FuzzEvents(f *testing.F) {
	f.Add([]byte{32, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	f.Fuzz(func(_ *testing.T, datagram []byte) {
		w := &watcher{engine: &Engine{devices: map[Key]bool{}}, names: map[int]string{}, out: make(chan Drift, driftBuffer)}
		w.events(datagram)
	})
}
