package ovnd

import (
	"net/netip"
	"testing"
	"time"
)

// One client's unfinished handshakes leave room for others, and all clients' together are limited.
func TestHandshakes(t *testing.T) {
	var h handshakes
	one, other := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	for range handshakesEach {
		if !h.begin(one) {
			t.Fatal("refused below the limit of a client")
		}
	}
	if h.begin(one) {
		t.Error("one client has no limit")
	}
	if !h.begin(other) {
		t.Error("one client keeps another out")
	}
	h.end(one)
	if !h.begin(one) {
		t.Error("a complete handshake still counts")
	}
	client := netip.MustParseAddr("10.1.0.0")
	for range handshakesAll - handshakesEach - 1 {
		if client = client.Next(); !h.begin(client) {
			t.Fatal("refused below the limit of all")
		}
	}
	if h.begin(client.Next()) {
		t.Error("all clients together have no limit")
	}
	for range handshakesEach {
		h.end(one)
	}
	if _, is := h.each[one]; is {
		t.Error("a client without handshakes is still counted")
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
