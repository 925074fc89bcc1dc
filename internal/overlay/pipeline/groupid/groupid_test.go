package groupid_test

import (
	"fmt"
	"testing"

	"weft.dev/weft/internal/overlay/pipeline/groupid"
)

// A name has the same number whatever order names come in.
func TestIDs(t *testing.T) {
	var a, b groupid.IDs
	names := []string{"service/ns/web/TCP/http", "service/ns/web/TCP/http/local", "service/ns/web/UDP/http"}
	for i := range names {
		b.ID(names[len(names)-1-i])
	}
	for _, name := range names {
		if first, again := a.ID(name), a.ID(name); first != b.ID(name) || first != again {
			t.Errorf("%s has two numbers", name)
		}
	}
	// Names with the same hash get different numbers, and keep them until they are released.
	seen := map[uint32]string{}
	var many groupid.IDs
	for i := range 200_000 {
		name := fmt.Sprint(i)
		id := many.ID(name)
		if other, ok := seen[id]; ok || id < 0x100 || id > 0xffffff00 {
			t.Fatalf("%s and %s have %d", name, other, id)
		}
		seen[id] = name
	}
	id := many.ID("7")
	many.Release("7")
	if many.ID("7") != id {
		t.Error("a name has another number once released")
	}
}
