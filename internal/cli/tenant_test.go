package cli

import (
	"bytes"
	"strings"
	"testing"

	"weft.dev/weft/internal/command"
	"weft.dev/weft/internal/tenant"
)

// Invalid requests are refused before any request to the cluster, with an error that names the flag.
func TestTenantFlags(t *testing.T) {
	for words, args := range map[string][]string{
		"--to: name the namespace": {"join", "b"}, "--selector: ": {"isolate", "--selector", "a in ("}, `--output "table"`: {"global", "a", "-o", "table"},
		"unknown flag: --to": {"isolate", "--to", "a", "b"},
	} {
		out, code, err := weft(t, Environment{}, append([]string{"tenant"}, args...)...)
		if err == nil || code != command.Unknown || !strings.Contains(err.Error(), words) {
			t.Errorf("%v: %q, code %d, %v; want %q", args, out, code, err, words)
		}
	}
	for _, command := range []string{"join", "isolate", "global"} {
		out, _, err := weft(t, Environment{}, "tenant", command, "--help")
		if err != nil || !strings.Contains(out, "Examples:\n  #") {
			t.Errorf("weft tenant %s --help: %v\n%s", command, err, out)
		}
	}
}

func TestTenantText(t *testing.T) {
	report := tenant.Report{Namespaces: []tenant.Result{{Namespace: "shop", NetID: 42}, {Namespace: "stock-keeping", NetID: 42, Was: 16777215}}, Nodes: 3, Realised: 2, Behind: []string{"n2"}}
	var text bytes.Buffer
	if err := tenantText(&text, &report, true); err != nil {
		t.Fatal(err)
	}
	golden(t, "tenant.txt", text.String())
}
