//go:build real

package bridge_test

import (
	"testing"

	"weft.dev/weft/internal/openflow"
	"weft.dev/weft/internal/openflow/openflowtest"
	"weft.dev/weft/internal/openflow/ovstest"
)

func TestEngineOnARealSwitchPassesTheSuite(t *testing.T) {
	openflowtest.Run(t, func(t *testing.T) openflowtest.Subject {
		s := ovstest.Start(t)
		br := s.Name("br")
		s.AddBridge(br)
		return openflowtest.Subject{
			Engine: runEngine(t, s.Mgmt(br)),
			Disturb: func(t *testing.T, mods ...openflow.Mod) {
				t.Helper()
				if err := dial(t, s, br).Bundle(t.Context(), mods); err != nil {
					t.Fatal(err)
				}
			},
			Restart: func(*testing.T) {
				s.Stop("ovs-vswitchd", true)
				s.StartVSwitchd()
			},
		}
	})
}
