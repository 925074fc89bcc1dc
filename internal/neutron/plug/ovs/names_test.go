package ovs

import (
	"strings"
	"testing"
)

// Whatever Neutron gives as a port's id, it is rejected, or the devices have names that Linux accepts.
func FuzzChainOf(f *testing.F) {
	f.Add("5b1fdbd5-6f0b-4f0a-9a5c-0d9c5f3f0f11")
	f.Add("../../../etc/passwd")
	f.Add("short")
	f.Fuzz(func(t *testing.T, id string) {
		names, err := chainOf(id)
		if err != nil {
			return
		}
		for _, name := range []string{names.tap, names.bridge, names.lower, names.upper} {
			if len(name) > 15 || strings.ContainsAny(name, "/:\x00 \t\n\v\f\r") {
				t.Errorf("device %q of port %q", name, id)
			}
		}
	})
}
