package link_test

import (
	"errors"
	"testing"

	"weft.dev/weft/internal/link"
)

func TestValidateName(t *testing.T) {
	for name, valid := range map[string]bool{
		"eth0": true, "veth0123456789a": true, "tun0.5": true, "a-b_c@d": true,
		"": false, "veth0123456789ab": false, "a/b": false, "..": false, ".": false, "a..b": false, "a b": false, "a\tb": false, "a\x00": false,
		"a:1": false, "é": false, "all": false, "default": false, "a%d": false, "a\n": false,
	} {
		if err := link.ValidateName(name); (err == nil) != valid || err != nil && !errors.Is(err, link.ErrName) {
			t.Errorf("%q: %v", name, err)
		}
	}
}
