//go:build real

package ovsport_test

import (
	"context"
	"errors"
	"maps"
	"strings"
	"testing"
	"time"

	"weft.dev/weft/internal/ovn/ovntest"
	"weft.dev/weft/internal/ovsport"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A pod's interface waits until its logical port exists and is then attached; it can change to another logical port, and is removed
// alone.
func TestPorts(t *testing.T) {
	site := ovntest.NewSite(t, 1)
	node := site.Chassis[0]
	ports, err := ovsport.Open(t.Context(), ovsport.Config{Endpoint: "unix:" + node.DBSock, Bridge: "br-int"})
	must(t, err)
	t.Cleanup(ports.Close)
	site.Nbctl("ls-add", "s", "--", "lsp-add", "s", "a", "--", "lsp-set-addresses", "a", "0a:58:0a:00:01:02 10.0.1.2")
	pod := ovntest.NewPod(t)
	ovntest.Veth(t, pod.NetNS, "eth0", node.NetNS, "va")
	port := ovsport.Port{Device: "va", IfaceID: "a", Owner: "attachment/1"}
	must(t, ports.Attach(t.Context(), port))
	must(t, ports.Attach(t.Context(), port)) // again
	have, err := ports.List(t.Context())
	if want := map[string]ovsport.Port{"va": port}; err != nil || !maps.Equal(have, want) {
		t.Errorf("%v, %v, want %v", have, err, want)
	}
	node.Stop("ovsdb-server", true)
	node.StartDB()
	must(t, ports.Attach(t.Context(), port))

	t.Run("logical port that comes later", func(t *testing.T) {
		short, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		late := ovsport.Port{Device: "va", IfaceID: "late", Owner: "attachment/2"}
		if err := ports.Attach(short, late); !errors.Is(err, ovsport.ErrNotInstalled) {
			t.Errorf("without the logical port: %v", err)
		}
		site.Nbctl("lsp-add", "s", "late")
		must(t, ports.Attach(t.Context(), late))
	})
	t.Run("rows of others", func(t *testing.T) {
		ovntest.Veth(t, ovntest.NewPod(t).NetNS, "eth0", node.NetNS, "foreign")
		node.VSCtl("add-port", "br-int", "foreign")
		if err := ports.Attach(t.Context(), ovsport.Port{Device: "foreign", IfaceID: "a", Owner: "x"}); !errors.Is(err, ovsport.ErrForeign) {
			t.Errorf("another's port: %v", err)
		}
		must(t, ports.Detach(t.Context(), "foreign", "va", "none"))
		if got := strings.TrimSpace(node.VSCtl("list-ports", "br-int")); got != "foreign" {
			t.Errorf("ports that are left: %q", got)
		}
	})
	other, err := ovsport.Open(t.Context(), ovsport.Config{Endpoint: "unix:" + node.DBSock, Bridge: "br-none"})
	must(t, err)
	defer other.Close()
	if err := other.Attach(t.Context(), port); !errors.Is(err, ovsport.ErrNoBridge) {
		t.Errorf("without the bridge: %v", err)
	}
	must(t, other.Detach(t.Context(), "va"))
}
