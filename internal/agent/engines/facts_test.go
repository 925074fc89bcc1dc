package engines

import (
	"net/netip"
	"strings"
	"testing"
)

// The error for a hostIP that no interface of the node has names the address and the right setting.
func TestNodeWithoutItsAddress(t *testing.T) {
	k := &Kernel{}
	_, err := k.Facts(netip.MustParseAddr("192.0.2.77")) // RFC 5737: a documentation address
	if err == nil || !strings.Contains(err.Error(), "hostIP 192.0.2.77: no interface of this node has it; the Node's first IPv4 InternalIP must be") {
		t.Errorf("%v", err)
	}
}
