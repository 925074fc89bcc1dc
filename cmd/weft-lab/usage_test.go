package main

import (
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// refused runs a command line, and reports whether it was refused as wrong use.
func refused(args ...string) (bool, error) {
	cmd := root()
	cmd.SetArgs(args)
	cmd.SetOut(io.Discard)
	cmd.SetErr(io.Discard)
	err := cmd.Execute()
	_, wrong := errors.AsType[usageError](err)
	return wrong, err
}

// Every command refuses arguments that it does not use, and flags that it does not have.
func TestWrongUse(t *testing.T) {
	var each func(cmd *cobra.Command)
	tried := 0
	each = func(cmd *cobra.Command) {
		path := strings.Fields(cmd.CommandPath())[1:]
		use := strings.Fields(cmd.Use)
		if extra := append(path, use[1:]...); !strings.Contains(cmd.Use, "...") {
			tried++
			if wrong, err := refused(append(extra, "nonsense")...); !wrong || !strings.Contains(err.Error(), "--help") {
				t.Errorf("weft-lab %s nonsense: %v", strings.Join(extra, " "), err)
			}
		}
		if wrong, err := refused(append(path, "--nonsense")...); !wrong || !strings.Contains(err.Error(), "nonsense") {
			t.Errorf("weft-lab %s --nonsense: %v", strings.Join(path, " "), err)
		}
		for _, sub := range cmd.Commands() {
			each(sub)
		}
	}
	each(root())
	if tried < 15 {
		t.Errorf("%d commands were tried", tried)
	}
	for _, args := range []string{"exec", "exec n1", "vm", "pod add", "pod exec", "vm --timeout=0 -- true", "vm --timeout=-1s -- true"} {
		if wrong, err := refused(strings.Fields(args)...); !wrong {
			t.Errorf("weft-lab %s: %v", args, err)
		}
	}
}
