package command

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

func TestLogRefuses(t *testing.T) {
	for _, flags := range []Log{{Level: "loud", Format: "text"}, {Level: "info", Format: "xml"}} {
		if _, _, err := flags.Open(&bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), "it is one of") {
			t.Errorf("%+v: %v", flags, err)
		}
	}
}

// A program prints its error once, after its name, and nothing for a command that has printed everything itself.
func TestRun(t *testing.T) {
	for _, c := range []struct {
		err     error
		code    int
		printed string
	}{
		{nil, 0, ""},
		{errors.New("no route"), 1, "weft: no route\n"},
		{&Exit{Code: Unknown, Err: errors.New("unknown flag")}, 2, "weft: unknown flag\n"},
		{&Exit{Code: Differs}, 1, ""},
	} {
		var out bytes.Buffer
		cmd := &cobra.Command{SilenceUsage: true, SilenceErrors: true, RunE: func(*cobra.Command, []string) error { return c.err }}
		cmd.SetErr(&out)
		cmd.SetArgs([]string{})
		if code := Run("weft", cmd); code != c.code || out.String() != c.printed {
			t.Errorf("%v: exit code %d, printed %q; want %d and %q", c.err, code, out.String(), c.code, c.printed)
		}
	}
}
