package agent

import (
	"net/netip"
	"strings"
	"testing"
)

// A node that has not the address that it is said to have hears which, and what would be right.
func TestNodeWithoutItsAddress(t *testing.T) {
	e := &engines{}
	_, err := e.nodeFacts(netip.MustParseAddr("192.0.2.77")) // RFC 5737: nobody's
	if err == nil || !strings.Contains(err.Error(), "hostIP 192.0.2.77: no interface of this node has it; the Node's first InternalIP must be") {
		t.Errorf("%v", err)
	}
}
