//go:build real

package ovsdb_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"weft.dev/weft/internal/ovsdb"
	"weft.dev/weft/internal/reconcile"
)

// Two programs share a switch: each reads and changes its own rows on a bridge that belongs to neither.
func TestProgramsShareASwitch(t *testing.T) {
	s := newReal(t)
	s.VSCtl("add-br", "br-int", "--", "set", "bridge", "br-int", "datapath_type=netdev")
	config := s.config()
	config.Bridges, config.Program = nil, "provider"
	provider, err := ovsdb.Open(t.Context(), config)
	must(t, err)
	t.Cleanup(provider.Close)
	engines := map[string]*ovsdb.Engine{"agent0": s.engine, "provider0": provider}
	for name, engine := range engines {
		ids := map[string]string{ovsdb.OwnerID: name}
		if engine == provider {
			ids[ovsdb.ProgramID] = "provider"
		}
		row := &ovsdb.Port{Bridge: "br-int", Name: name, Type: ovsdb.TypeInternal, ExternalIDs: ids}
		must(t, engine.Commit(t.Context(), reconcile.Change[ovsdb.Key, ovsdb.Row]{Set: map[ovsdb.Key]ovsdb.Row{row.Key(): row}}))
	}
	for name, engine := range engines {
		rows, err := engine.Read(t.Context())
		must(t, err)
		if have := slices.Collect(maps.Keys(rows)); len(have) != 1 || have[0] != ovsdb.PortKey(name) {
			t.Errorf("the program of %s reads %v", name, have)
		}
	}
	// Rows of others are not removed, even if the change names them.
	all := map[ovsdb.Key]ovsdb.Row{
		ovsdb.PortKey("agent0"):    &ovsdb.Port{Bridge: "br-int", Name: "agent0"},
		ovsdb.PortKey("provider0"): &ovsdb.Port{Bridge: "br-int", Name: "provider0"},
	}
	must(t, s.engine.Commit(t.Context(), reconcile.Change[ovsdb.Key, ovsdb.Row]{Delete: all}))
	if ports := strings.TrimSpace(s.VSCtl("list-ports", "br-int")); ports != "provider0" {
		t.Errorf("ports that are left: %q", ports)
	}
}
