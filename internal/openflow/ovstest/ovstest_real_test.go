//go:build real

package ovstest_test

import (
	"strings"
	"testing"

	"weft.dev/weft/internal/openflow/ovstest"
)

func TestASwitchStartsRestartsAndHasABridge(t *testing.T) {
	s := ovstest.Start(t)
	br := s.Name("br")
	s.AddBridge(br)
	if out := s.OFCtl("show", s.Mgmt(br)); !strings.Contains(out, "OFPT_FEATURES_REPLY") {
		t.Fatalf("ovs-ofctl show: %s", out)
	}
	s.Stop("ovs-vswitchd", true)
	s.StartVSwitchd()
	if out := s.VSCtl("list-br"); strings.TrimSpace(out) != br {
		t.Fatalf("bridges after a restart: %q", out)
	}
}
