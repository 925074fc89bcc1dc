package house

import (
	"maps"
	"regexp"
	"testing"
)

func messages(t *testing.T) map[string][]string {
	t.Helper()
	all := map[string][]string{}
	for _, folder := range []string{"internal", "cmd/weft", "cmd/weft-cni", "cmd/weft-flannel"} {
		found, err := Messages("../..", folder)
		if err != nil {
			t.Fatal(err)
		}
		maps.Copy(all, found)
	}
	return all
}

// TestMessageWords finds words that treat programs and packets as persons, or that readers take in only at the second reading.
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
