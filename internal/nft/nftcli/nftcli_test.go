package nftcli

import "testing"

func TestParseError(t *testing.T) {
	for text, want := range map[string]Error{
		"/dev/stdin:2:17-23: Error: Could not process rule: No such file or directory\nadd rule\n": {Words: "Could not process rule: No such file or directory", Line: 2},
		"Error: No such file or directory\nlist table inet nono\n":                                 {Words: "No such file or directory", Line: 0},
		"Operation not permitted (you must be root)\n":                                             {Words: "Operation not permitted (you must be root)", Line: 0},
		"": {Words: "", Line: 0},
	} {
		if got := parseError(text); *got != want {
			t.Errorf("%q: %+v, want %+v", text, *got, want)
		}
	}
}
