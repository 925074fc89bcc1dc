package cli

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"weft.dev/weft/internal/admin"
	"weft.dev/weft/internal/command"
	"weft.dev/weft/internal/goldentest"
)

// fakeAgent serves an agent's admin socket for the current user.
func fakeAgent(t *testing.T, diff admin.Diff) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "admin", "admin.sock")
	listener, err := admin.Listen(socket, uint32(os.Geteuid())) //nolint:gosec // uids fit
	if err != nil {
		t.Fatal(err)
	}
	server := &admin.Server{
		State: func() admin.State { return admin.State{} }, Level: &slog.LevelVar{},
		Diff:   func(context.Context) (admin.Diff, error) { return diff, nil },
		Owners: func(admin.OwnersQuery) (admin.Owners, error) { return flowOwners(), nil },
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- server.Serve(ctx, listener) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return socket
}

// weft runs a command, and returns its output (standard error last), its exit code and its error.
func weft(t *testing.T, environment Environment, args ...string) (out string, code int, err error) {
	t.Helper()
	cmd := Weft(environment)
	var text, errs bytes.Buffer
	cmd.SetOut(&text)
	cmd.SetErr(&errs)
	cmd.SetArgs(args)
	err = cmd.ExecuteContext(t.Context())
	return text.String() + errs.String(), command.ExitCode(err), err
}

func inStep() admin.Diff {
	return admin.Diff{InStep: true, Engines: []admin.EngineDiff{{Name: "nft", Desired: 21, Programmed: 21}, {Name: "openflow", Desired: 58, Programmed: 58}}}
}

func differing() admin.Diff {
	d := inStep()
	d.InStep = false
	d.Engines[0].Differences = []admin.Difference{{
		Owner: "cluster", Change: admin.Missing, Item: "rules inet weft postrouting",
		Want: "rules inet weft postrouting {\n  accept comment \"cluster\"\n}",
	}}
	d.Engines[1].Differences = []admin.Difference{
		{Change: admin.Extra, Item: "table=0,priority=5000,ip", Have: "priority=5000,ip actions=drop"},
		{Owner: "attachment/ab12/eth0", Pod: "default/web", Change: admin.Missing, Item: "table=20", Want: "table=20, actions=drop", Why: "no room in the table"},
		{Owner: "attachment/ab12/eth0", Pod: "default/web", Change: admin.Different, Item: "table=30", Have: "table=30, actions=drop", Want: "table=30, actions=output:3", Why: "no room in the table"},
	}
	return d
}

func unknownEngine() admin.Diff {
	d := inStep()
	d.InStep = false
	d.Engines[1] = admin.EngineDiff{Name: "openflow", Error: "openflow: reading back: engine not reachable"}
	return d
}

// TestDiff checks the output, for users and for scripts, and the exit code.
func TestDiff(t *testing.T) {
	for _, test := range []struct {
		name string
		diff admin.Diff
		args []string
		code int
	}{
		{"in-step.txt", inStep(), nil, 0},
		{"differs.txt", differing(), nil, 1},
		{"differs.json", differing(), []string{"-o", "json"}, 1},
		{"differs.yaml", differing(), []string{"-o", "yaml"}, 1},
		{"unknown.txt", unknownEngine(), nil, 2},
	} {
		t.Run(test.name, func(t *testing.T) {
			out, code, _ := weft(t, Environment{}, append([]string{"diff", "--socket", fakeAgent(t, test.diff)}, test.args...)...)
			if code != test.code {
				t.Errorf("exit code %d, want %d", code, test.code)
			}
			golden(t, "diff-"+test.name, out)
		})
	}
}

// TestExitCodes: a command that compares has different exit codes for a failure and for a result.
func TestExitCodes(t *testing.T) {
	nowhere := filepath.Join(t.TempDir(), "no.sock")
	for _, test := range []struct {
		args []string
		code int
		part string
	}{
		{[]string{"diff", "--socket", nowhere}, 2, "no agent runs here"},
		{[]string{"diff", "--controller=127.0.0.1:1"}, 2, "no controller answers at 127.0.0.1:1"},
		{[]string{"diff", "--colour"}, 2, "unknown flag"},
		{[]string{"diff", "-o", "xml"}, 2, "text, json, yaml"},
		{[]string{"status", "-o", "xml"}, 2, "text, json, yaml"},
		{[]string{"status", "--kubeconfig", nowhere}, 2, "--kubeconfig"},
		{[]string{"log-level", "--socket", nowhere}, 1, "no agent runs here"},
		{[]string{"log-level", "debug", "info"}, 2, "accepts at most 1 arg"},
	} {
		_, code, err := weft(t, Environment{}, test.args...)
		if code != test.code || err == nil || !strings.Contains(err.Error(), test.part) {
			t.Errorf("%v: code %d, %v", test.args, code, err)
		}
	}
	if code := command.ExitCode(errors.New("another")); code != 1 {
		t.Errorf("another error: code %d", code)
	}
}

// TestLogLevel: the level is shown and changed; the error for an invalid level lists the valid ones.
func TestLogLevel(t *testing.T) {
	socket := fakeAgent(t, admin.Diff{})
	for _, step := range [][2]string{{"", "info"}, {"warn", "warn"}, {"", "warn"}} {
		args := append([]string{"log-level", "--socket", socket}, strings.Fields(step[0])...)
		if out, code, err := weft(t, Environment{}, args...); out != step[1]+"\n" || code != 0 {
			t.Errorf("%v: %q, code %d, %v", args, out, code, err)
		}
	}
	if _, _, err := weft(t, Environment{}, "log-level", "--socket", socket, "loud"); err == nil || !strings.Contains(err.Error(), "debug, info, warn, error") {
		t.Errorf("loud: %v", err)
	}
}

// TestPluginOfKubectl: under its name as a kubectl plugin, the program shows the kubectl form in its help.
func TestPluginOfKubectl(t *testing.T) {
	for program, want := range map[string]string{"kubectl-weft": "kubectl weft status [flags]", "weft": "weft status [flags]"} {
		out, _, err := weft(t, Environment{Program: program}, "status", "--help")
		if err != nil || !strings.Contains(out, "\n  "+want) {
			t.Errorf("as %s: %v\n%s", program, err, out)
		}
	}
}

// TestEveryCommandHasExamples: --help of every command has a description and examples.
func TestEveryCommandHasExamples(t *testing.T) {
	for _, cmd := range Weft(Environment{}).Commands() {
		if cmd.Example == "" || cmd.Long == "" {
			t.Errorf("weft %s has no example, or no words", cmd.Name())
		}
	}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	goldentest.Compare(t, path, got)
}
