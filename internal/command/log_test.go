package command

import (
	"bytes"
	"strings"
	"testing"
)

func TestLogRefuses(t *testing.T) {
	for _, flags := range []Log{{Level: "loud", Format: "text"}, {Level: "info", Format: "xml"}} {
		if _, _, err := flags.Open(&bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), "it is one of") {
			t.Errorf("%+v: %v", flags, err)
		}
	}
}
