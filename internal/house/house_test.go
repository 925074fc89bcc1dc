package house

import (
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// engines are the rooms that the table means by the word "engines".
func engines() []string {
	return []string{"internal/openflow", "internal/ovsdb", "internal/link", "internal/nft", "internal/ovn", "internal/reconcile"}
}

// roofs are the networks. They must not import each other.
func roofs() []string {
	return []string{"internal/overlay", "internal/flannel", "internal/vpc", "internal/neutron"}
}

// shared are rooms that networks import, and that import no network.
func shared() []string {
	return append(engines(),
		"internal/network", "internal/placement", "internal/node", "internal/attach", "internal/cni", "internal/cluster", "internal/policy",
		"internal/service", "internal/ipam", "internal/keep", "internal/health", "internal/metrics", "internal/timing", "internal/tracing",
		"internal/nodenetwork", "internal/rootsocket", "internal/resolver", "internal/liveness", "internal/watermark",
	)
}

// under reports whether a package is in a room.
func under(pkg, room string) bool { return pkg == room || strings.HasPrefix(pkg, room+"/") }

func in(pkg string, rooms []string) bool {
	return slices.ContainsFunc(rooms, func(room string) bool { return under(pkg, room) })
}

// table reads from ARCHITECTURE.md which rooms each room may import.
func table(t *testing.T) map[string][]string {
	t.Helper()
	text, err := os.ReadFile("../../ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	row := regexp.MustCompile("(?m)^\\| (`[^|]*) \\|.*\\| ([^|]*) \\|$")
	name := regexp.MustCompile("`((?:internal|api)/[a-z0-9/]+)`")
	note := regexp.MustCompile(` \([^)]*\)`)
	rooms := map[string][]string{}
	for _, match := range row.FindAllStringSubmatch(string(text), -1) {
		var known []string
		if !name.MatchString(match[1]) {
			continue // a row of folders that are not checked
		}
		for _, word := range strings.FieldsFunc(note.ReplaceAllString(match[2], ""), func(r rune) bool { return r == ',' || r == ';' }) {
			switch word = strings.TrimSpace(word); word {
			case "", "nothing":
			case "engines":
				known = append(known, engines()...)
			case "api":
				known = append(known, "api")
			case "everything":
				known = append(known, "internal", "api")
			default:
				if !strings.HasPrefix(word, "api/") && !strings.HasPrefix(word, "lab/") {
					word = "internal/" + word
				}
				if _, err := os.Stat("../../" + word); err != nil {
					t.Errorf("ARCHITECTURE.md: the row of %s says that it knows %q, which is no room", match[1], word)
				}
				known = append(known, word)
			}
		}
		for _, room := range name.FindAllStringSubmatch(match[1], -1) {
			if known == nil {
				known = []string{}
			}
			rooms[room[1]] = known
		}
	}
	return rooms
}

// TestTable: rooms import only what the table of ARCHITECTURE.md allows.
func TestTable(t *testing.T) {
	rooms := table(t)
	if len(rooms) < 30 {
		t.Fatalf("ARCHITECTURE.md has a table of %d rooms: is it still one?", len(rooms))
	}
	imports, err := Imports("../..", "internal")
	if err != nil {
		t.Fatal(err)
	}
	for _, pkg := range slices.Sorted(maps.Keys(imports)) {
		room := ""
		for candidate := range rooms {
			if under(pkg, candidate) && len(candidate) > len(room) {
				room = candidate
			}
		}
		if room == "" {
			t.Errorf("%s is in no room of ARCHITECTURE.md's table: add a row", pkg)
			continue
		}
		for _, imported := range imports[pkg] {
			if !under(imported, room) && !in(imported, rooms[room]) && !in(imported, roofOf(room)) {
				t.Errorf("%s imports %s, which ARCHITECTURE.md's row of %s does not name: change the import, or the row", pkg, imported, room)
			}
		}
	}
}

// roofOf returns the network that a room is part of. Rooms of one network may import each other.
func roofOf(room string) []string {
	return slices.DeleteFunc(roofs(), func(roof string) bool { return !under(room, roof) })
}

// TestRoofs: no network imports another, and shared rooms import none.
func TestRoofs(t *testing.T) {
	imports, err := Imports("../..", "internal")
	if err != nil {
		t.Fatal(err)
	}
	for _, pkg := range slices.Sorted(maps.Keys(imports)) {
		for _, imported := range imports[pkg] {
			for _, roof := range roofs() {
				switch {
				case !under(imported, roof) || under(pkg, roof):
				case in(pkg, roofs()):
					t.Errorf("%s imports %s: one network knows another", pkg, imported)
				case in(pkg, shared()):
					t.Errorf("%s imports %s: a shared room knows a network", pkg, imported)
				}
			}
		}
	}
}

// TestLinkerDropsMethods checks that `make build` and the labs build weft without html/template, whose calls by name make the linker keep
// every exported method: 20 MB of program, of which each agent has some 15 MB in memory.
func TestLinkerDropsMethods(t *testing.T) {
	for _, file := range []string{"../../Makefile", "../../lab/programs/programs.go"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(text), "grpcnotrace") {
			t.Errorf("%s builds without the tag grpcnotrace", file)
		}
	}
	out, err := exec.Command("go", "list", "-tags", "grpcnotrace", "-deps", "../../cmd/weft").Output()
	if err != nil {
		t.Fatal(err)
	}
	if slices.Contains(strings.Fields(string(out)), "html/template") {
		t.Error("cmd/weft imports html/template: find the way with `go mod why -m` or `go list -deps`, and avoid it")
	}
}
