//go:build real

package flanneltest_test

import (
	"os/exec"
	"strings"
	"testing"

	"weft.dev/weft/internal/flannel/flanneltest"
)

// TestPrograms: the real programs exist and run. The virtual machine has no network to build them.
func TestPrograms(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), flanneltest.Flanneld(t), "--version").CombinedOutput()
	if err != nil {
		t.Errorf("flanneld: %v: %s", err, out)
	}
	cmd := exec.CommandContext(t.Context(), flanneltest.Plugin(t))
	cmd.Env = []string{"CNI_COMMAND=VERSION"}
	cmd.Stdin = strings.NewReader("{}")
	if out, err := cmd.Output(); err != nil || !strings.Contains(string(out), "0.4.0") {
		t.Errorf("plugin: %v: %s", err, out)
	}
}
