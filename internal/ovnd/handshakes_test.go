package ovnd

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"
)

// A handshake beyond a client's limit stops the client's oldest one, and one beyond the limit of all, the oldest of all: unfinished handshakes
// keep out neither other clients nor a server that has the same address, as one on the node of a pod has.
func TestHandshakes(t *testing.T) {
	var h handshakes
	var stopped []string
	begin := func(client netip.Addr, name string) *handshake {
		return h.begin(client, func() { stopped = append(stopped, name) })
	}
	expect := func(what string, want ...string) {
		t.Helper()
		if !slices.Equal(stopped, want) {
			t.Errorf("%s stops %q, want %q", what, stopped, want)
		}
		stopped = nil
	}
	one, other := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	begin(other, "other")
	var ofOne []*handshake
	for i := range handshakesEach {
		ofOne = append(ofOne, begin(one, fmt.Sprint(i)))
	}
	expect("a handshake below the limits")
	begin(one, "last")
	expect("one beyond the limit of a client", "0")
	h.end(ofOne[1])
	h.end(ofOne[0]) // was stopped, and counts no more
	begin(one, "after one that is complete")
	expect("one after a complete one")
	client := netip.MustParseAddr("10.1.0.0")
	for range handshakesAll - handshakesEach - 1 {
		client = client.Next()
		begin(client, "")
	}
	expect("a handshake of another client below the limits")
	begin(client.Next(), "")
	expect("one beyond the limit of all", "other")
	if len(h.all) != handshakesAll {
		t.Errorf("%d handshakes, want %d", len(h.all), handshakesAll)
	}
}

// Refused connections are reported at once, and then as a number from time to time.
func TestRefusals(t *testing.T) {
	var h handshakes
	begin := time.Unix(1000, 0)
	for i, c := range []struct {
		after time.Duration
		want  int
	}{{0, 1}, {time.Second, 0}, {2 * time.Second, 0}, {sayAgain, 3}, {sayAgain + time.Second, 0}, {2 * sayAgain, 2}} {
		if got := h.refuse(begin.Add(c.after)); got != c.want {
			t.Errorf("refusal %d after %s: a message of %d, want %d", i, c.after, got, c.want)
		}
	}
}
