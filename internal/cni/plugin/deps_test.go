package plugin_test

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// TestDependencies keeps the plugins small: they are executed for every pod, several times.
func TestDependencies(t *testing.T) {
	for _, program := range []string{"weft-cni", "weft-flannel"} {
		t.Run(program, func(t *testing.T) { wantSmall(t, program) })
	}
}

func wantSmall(t *testing.T, program string) {
	t.Helper()
	out, err := exec.Command("go", "list", "-deps", "weft.dev/weft/cmd/"+program).Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	packages := strings.Fields(string(out))
	if !slices.Contains(packages, "weft.dev/weft/internal/cni/plugin") {
		t.Fatalf("the plugin does not depend on itself: %d packages listed", len(packages))
	}
	for _, pkg := range packages {
		for _, forbidden := range []string{
			"k8s.io/", "sigs.k8s.io/", "net/http", "crypto/tls", "github.com/prometheus/", "google.golang.org/", "github.com/spf13/",
			"go.opentelemetry.io/", "github.com/ovn-kubernetes/", "github.com/vishvananda/netlink", "weft.dev/weft/internal/link",
		} {
			if strings.HasPrefix(pkg, forbidden) {
				t.Errorf("the plugin depends on %s", pkg)
			}
		}
	}
}
