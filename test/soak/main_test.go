package main

import (
	"bytes"
	"testing"
)

// build/soak installs OpenStack's packages if the list has the part that needs them.
func TestList(t *testing.T) {
	for parts, want := range map[string]string{
		"neutron": "neutron\n", "restarts|^vpc$": "restarts\nvpc\n", "none": "",
		"": "restarts\npolicies\nfaults\nkills\ncrowds\nclock\nneutron\nvpc\nflannel\n",
	} {
		var out, errs bytes.Buffer
		if code := run(t.Context(), []string{"-parts", parts, "-list"}, &out, &errs); code != 0 || out.String() != want {
			t.Errorf("-parts %q -list: code %d, %q, %s; want %q", parts, code, &out, &errs, want)
		}
	}
}
