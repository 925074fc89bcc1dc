package house

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"weft.dev/weft/internal/goldentest"
)

func messages(t *testing.T) map[string][]string {
	t.Helper()
	all := map[string][]string{}
	for _, folder := range []string{"internal", "cmd/weft", "cmd/weft-cni", "cmd/weft-flannel", "cmd/weft-provider"} {
		found, err := Messages("../..", folder)
		if err != nil {
			t.Fatal(err)
		}
		maps.Copy(all, found)
	}
	return all
}

// TestDocument compares docs/messages.md with the code, so that a changed message is reviewed together with all others.
func TestDocument(t *testing.T) {
	var b strings.Builder
	b.WriteString("<!-- Made by `go test ./internal/house -run TestDocument -update`. Do not edit. -->\n# Messages\n\n")
	b.WriteString("The errors and log lines of Weft's programs, by package. `%s`, `%q`, `%d` and `%v` are values; `%w` is the error that follows.\n")
	all := messages(t)
	for _, pkg := range slices.Sorted(maps.Keys(all)) {
		if len(all[pkg]) == 0 {
			continue
		}
		fmt.Fprintf(&b, "\n## %s\n\n", pkg)
		for _, text := range all[pkg] {
			fmt.Fprintf(&b, "- `%s`\n", strings.NewReplacer("\n", " ", "`", "'").Replace(text))
		}
	}
	const path = "../../docs/messages.md"
	goldentest.Compare(t, path, b.String())
}

// TestMessageWords rejects words that treat programs and packets as persons, and words that readers understand only at the second reading.
func TestMessageWords(t *testing.T) {
	words := regexp.MustCompile(`(?i)\b(who|whom|whoever|nobody|somebody|anybody|upon|told|tells?)\b`)
	for pkg, all := range messages(t) {
		for _, text := range all {
			if word := words.FindString(text); word != "" {
				t.Errorf("%s: %q has the word %q: name the program, object or reason instead", pkg, text, word)
			}
		}
	}
}
