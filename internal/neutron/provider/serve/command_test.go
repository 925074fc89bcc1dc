package serve

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"weft.dev/weft/internal/command"
)

// `weft provider` passes the flags on that it was given, with their values.
func TestArguments(t *testing.T) {
	given := []string{"--allow-uid=0,1000", "--config=/etc/a b.conf", "--listen=unix:/run/x", "--log-level=debug"}
	for _, args := range [][]string{nil, given} {
		weft := Describe("provider")
		weft.RunE = func(*cobra.Command, []string) error { return nil }
		weft.Flags().String("kubeconfig", "", "weft's, not the program's")
		log := command.DefaultLog()
		log.Register(weft.Flags())
		if err := weft.ParseFlags(append([]string{"--kubeconfig=/root/config"}, args...)); err != nil {
			t.Fatal(err)
		}
		got := Arguments(weft.Flags())
		if !slices.Equal(got, args) {
			t.Errorf("%v: passed on as %v", args, got)
		}
		program, o := describe(Program)
		log.Register(program.Flags())
		if err := program.ParseFlags(got); err != nil {
			t.Errorf("%v: %v", got, err)
		}
		if len(args) > 0 && (!slices.Equal(o.uids, []uint{0, 1000}) || o.config != "/etc/a b.conf" || o.listen.Address != "unix:/run/x") {
			t.Errorf("%v: read as %+v", got, o)
		}
	}
}

// The program refuses what weft refuses, with weft's exit code.
func TestRefused(t *testing.T) {
	for args, want := range map[string]string{
		"nonsense": "nonsense", "--nonsense": "nonsense", "--allow-uid=root": "--allow-uid", "--log-level=loud": "it is one of debug",
		"--config=/nonexistent": "/nonexistent",
	} {
		_, err := run(Program, 0, args)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", args, err)
		}
		if exit := (*command.Exit)(nil); strings.HasSuffix(args, "nonsense") && (!errors.As(err, &exit) || exit.Code != command.Unknown) {
			t.Errorf("%s: exit code %d", args, command.ExitCode(err))
		}
	}
	if _, err := run(Program, 1000, "--config=/nonexistent"); err == nil || !strings.Contains(err.Error(), "needs root") {
		t.Errorf("as another user: %v", err)
	}
}

// Under the name kubestack, the program takes KubeStack's flags.
func TestKubeStacksFlags(t *testing.T) {
	if out, err := run(KubeStack, 0, "-version -logtostderr -v=4 -conf /etc/x"); err != nil || out != "v1\n" {
		t.Errorf("-version: %q %v", out, err)
	}
	if _, err := run(KubeStack, 0, "-logtostderr=true -v 4 -port :4237 -conf /nonexistent"); err == nil || !strings.Contains(err.Error(), "/nonexistent") {
		t.Errorf("no configuration: %v", err)
	}
	for args, want := range map[string]string{"serve": `"serve" is not a flag`, "-nonsense": "nonsense"} {
		if _, err := run(KubeStack, 0, args); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", args, err)
		}
	}
}

func run(name string, uid int, args string) (string, error) {
	var out bytes.Buffer
	cmd := Command(name, "v1", uid)
	cmd.SetArgs(strings.Fields(args))
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	err := cmd.Execute()
	return out.String(), err
}
