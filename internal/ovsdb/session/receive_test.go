package session

import (
	"encoding/json"
	"net"
	"slices"
	"strings"
	"testing"
)

// TestReceiveTogether: messages that arrive together are all handled, also if one large one leaves others in the memory that is given up, and
// the next one ends in there.
func TestReceiveTogether(t *testing.T) {
	client, server := net.Pipe()
	sizes := append([]int{4 * largeMessage}, slices.Repeat([]int{largeMessage + 5000}, 5)...)
	var all strings.Builder
	for _, size := range sizes {
		all.WriteString(`{"id": null, "method": "other", "params": "` + strings.Repeat("x", size-len(`""`)) + `"}`)
	}
	var got []int
	c := newConnection(client, func(_ string, params json.RawMessage) error {
		got = append(got, len(params))
		return nil
	})
	defer c.close()
	if _, err := server.Write([]byte(all.String())); err != nil {
		t.Error(err)
	}
	_ = server.Close()
	<-c.ended
	if !slices.Equal(got, sizes) {
		t.Errorf("messages of %v bytes, want %v: %v", got, sizes, c.err)
	}
}
