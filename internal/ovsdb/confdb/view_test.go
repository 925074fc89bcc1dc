package confdb

import (
	"encoding/json"
	"maps"
	"testing"
)

// FuzzView arranges any contents of a database: rows that refer to missing rows or to each other, rows with odd names and values. Nothing may
// panic, and a port without an interface is never in effect.
func FuzzView(f *testing.F) {
	f.Add([]byte(`{"Root":{"r":{"Bridges":["b","x"]}},"Bridges":{"b":{"Name":"br0","Ports":["p","y"]}},"Ports":{"p":{"Name":"br0","Interfaces":["i"]}},"Interfaces":{"i":{"Name":"br0","OFPort":65534}}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var in Tables
		if json.Unmarshal(data, &in) != nil {
			return
		}
		maps.DeleteFunc(in.Root, func(_ string, r *Root) bool { return r == nil })
		maps.DeleteFunc(in.Bridges, func(_ string, r *Bridge) bool { return r == nil })
		maps.DeleteFunc(in.Ports, func(_ string, r *Port) bool { return r == nil })
		maps.DeleteFunc(in.Interfaces, func(_ string, r *Interface) bool { return r == nil })
		v := NewView(in, Claim{Bridges: []string{"br0"}})
		for _, b := range v.Bridges {
			_ = b.Failure()
		}
		for name, p := range v.Ports {
			if p.Failure() == "" && p.Interface == nil {
				t.Errorf("port %q without an interface is in effect", name)
			}
			_, _ = v.OFPort(name)
		}
	})
}

// A copy that was taken in the middle of an update is recognised by its references to missing rows.
func TestTornCopy(t *testing.T) {
	whole := Tables{
		Root:    map[string]*Root{"r": {Bridges: []string{"b"}}},
		Bridges: map[string]*Bridge{"b": {Name: "br0", Ports: []string{"p"}}},
		Ports:   map[string]*Port{"p": {Name: "br0", Interfaces: []string{"i"}}}, Interfaces: map[string]*Interface{"i": {Name: "br0"}},
	}
	if NewView(whole, Claim{}).dangling {
		t.Error("a complete copy counts as torn")
	}
	for name, tear := range map[string]func(*Tables){
		"bridge": func(t *Tables) { t.Bridges = nil }, "port": func(t *Tables) { t.Ports = nil }, "interface": func(t *Tables) { t.Interfaces = nil },
	} {
		torn := whole
		tear(&torn)
		if !NewView(torn, Claim{}).dangling {
			t.Errorf("a copy without its %s counts as complete", name)
		}
	}
}
