package cli

import (
	"strings"
	"testing"

	"weft.dev/weft/internal/command"
)

// Invalid arguments are refused with an error that names the valid ones.
func TestRealisedFlags(t *testing.T) {
	for words, args := range map[string][]string{
		"give a kind and an object": {"networkpolicy"}, `on kind "pod"`: {"pod", "shop/web"}, `--output "table"`: {"netnamespace", "shop", "-o", "table"},
		"unknown flag: --all": {"netnamespace", "shop", "--all"},
	} {
		if out, code, err := weft(t, Environment{}, append([]string{"realised"}, args...)...); err == nil || code != command.Unknown || !strings.Contains(err.Error(), words) {
			t.Errorf("%v: %q, code %d, %v; want %q", args, out, code, err, words)
		}
	}
}
